package service

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/stats"
)

// Loader turns sets of configuration files, or of a control plane's resources, into rules in force. All or nothing: a set with one
// problem changes nothing but the statistics and what LoadState tells.
type Loader struct {
	service  *Service
	options  limits.Options
	log      *slog.Logger
	good     *stats.Counter
	bad      *stats.Counter
	onLoaded func(domains int)

	mu    sync.Mutex // serialises loads and guards state
	state LoadState
}

// LoadState is what the debug port shows of the configuration.
type LoadState struct {
	// LoadedAt is when the rules in force were loaded; zero before the first set.
	LoadedAt time.Time `json:"loaded_at,omitzero"`
	// Generation counts the sets that came into force.
	Generation int `json:"generation"`
	Domains    int `json:"domains"`
	// Files are the names of the files or resources in force.
	Files    []string `json:"files,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
	// Error is why the newest set was refused, empty when it was not.
	Error   string    `json:"error,omitempty"`
	ErrorAt time.Time `json:"error_at,omitzero"`
}

// NewLoader loads into s. onLoaded is called with the number of domains after each success.
func NewLoader(s *Service, o limits.Options, log *slog.Logger, onLoaded func(domains int)) *Loader {
	o.Stats = s.o.Stats
	l := &Loader{
		service: s, options: o, log: log, onLoaded: onLoaded,
		good: o.Stats.Counter("ratelimit.service.config_load_success"),
		bad:  o.Stats.Counter("ratelimit.service.config_load_error"),
	}
	o.Stats.GaugeFunc("ratelimit.service.config_rejected", func() int64 {
		if l.State().Error != "" {
			return 1
		}
		return 0
	})
	o.Stats.GaugeFunc("ratelimit.service.config_loaded_at", func() int64 {
		if at := l.State().LoadedAt; !at.IsZero() {
			return at.Unix()
		}
		return 0
	})
	return l
}

// Load compiles files and puts them in force, or keeps the rules already loaded and says why.
func (l *Loader) Load(files []limits.File) error {
	bytes := 0
	for _, f := range files {
		bytes += len(f.Text)
	}
	return l.load(bytes, func() (*limits.Rules, []limits.Problem, error) { return limits.Load(files, l.options) })
}

// LoadResources is Load for the resources of a control plane.
func (l *Loader) LoadResources(resources [][]byte) error {
	bytes := 0
	for _, r := range resources {
		bytes += len(r)
	}
	return l.load(bytes, func() (*limits.Rules, []limits.Problem, error) { return limits.LoadResources(resources, l.options) })
}

// load puts what compile makes in force. bytes is how much there was to read.
func (l *Loader) load(bytes int, compile func() (*limits.Rules, []limits.Problem, error)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	start := time.Now()
	rules, warnings, err := compile()
	if err != nil {
		l.refused(err)
		return err
	}
	l.service.SetRules(rules)
	l.options.Stats.Retain(rules.StatsHandles())
	l.good.Inc()

	l.state = LoadState{LoadedAt: time.Now(), Generation: l.state.Generation + 1, Domains: len(rules.Domains())}
	for _, d := range rules.Domains() {
		l.state.Files = append(l.state.Files, d.Files...)
	}
	slices.Sort(l.state.Files)
	for _, w := range warnings {
		l.state.Warnings = append(l.state.Warnings, w.String())
		l.log.Warn("configuration: " + w.String())
	}
	l.log.Info("configuration loaded", "domains", l.state.Domains, "files", len(l.state.Files), "took", time.Since(start))
	l.onLoaded(l.state.Domains)
	if bytes >= limits.MuchText {
		debug.FreeOSMemory()
	}
	return nil
}

// Refuse records that no set could be had from the source at all.
func (l *Loader) Refuse(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refused(err)
}

func (l *Loader) refused(err error) {
	l.bad.Inc()
	l.state.Error, l.state.ErrorAt = err.Error(), time.Now()
	keeping := "keeping the rules already loaded"
	if l.state.Generation == 0 {
		keeping = "there are no rules yet"
	}
	if rejection, ok := errors.AsType[*limits.Rejection](err); ok {
		err = fmt.Errorf("%d problem(s): %w", len(rejection.Problems), err)
	}
	l.log.Error("configuration refused, "+keeping, "error", err)
}

// State is a copy of what is known about the configuration.
func (l *Loader) State() LoadState {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state
}
