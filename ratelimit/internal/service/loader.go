package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/limits/calendar"
	"gatehouse/ratelimit/internal/limits/rulefile"
	"gatehouse/ratelimit/internal/stats"
)

// Loader turns a set of configuration files, or a set of resources from a control plane, into the rules in force. A set
// with even one problem is refused: it changes only the statistics and the LoadState.
type Loader struct {
	service  *Service
	options  limits.Options
	log      *slog.Logger
	good     *stats.Counter
	bad      *stats.Counter
	onLoaded func(domains int)

	loading sync.Mutex // held during a load, so that loads follow each other
	state   atomic.Pointer[LoadState]
}

// LoadState is the state of the configuration, as the debug port shows it.
type LoadState struct {
	// LoadedAt is when the rules in force were loaded; zero if none have been loaded.
	LoadedAt time.Time `json:"loaded_at,omitzero"`
	// Generation counts the sets that have been put in force.
	Generation int `json:"generation"`
	Domains    int `json:"domains"`
	// Files are the names of the files, or of the resources, that the rules in force come from.
	Files    []string `json:"files,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
	// Error says why the newest set was refused; it is empty if the newest set is in force.
	Error   string    `json:"error,omitempty"`
	ErrorAt time.Time `json:"error_at,omitzero"`
}

// NewLoader returns a Loader that puts rules in force in the service s. It calls onLoaded with the number of domains
// after each load that succeeds.
func NewLoader(s *Service, o limits.Options, log *slog.Logger, onLoaded func(domains int)) *Loader {
	o.Stats = s.o.Stats
	l := &Loader{
		service: s, options: o, log: log, onLoaded: onLoaded,
		good: o.Stats.Counter("ratelimit.service.config_load_success"),
		bad:  o.Stats.Counter("ratelimit.service.config_load_error"),
	}
	l.state.Store(new(LoadState))
	o.Stats.FlagFunc("ratelimit.service.config_rejected", func() bool { return l.State().Error != "" })
	o.Stats.GaugeFunc("ratelimit.service.config_loaded_at", func() int64 {
		if at := l.State().LoadedAt; !at.IsZero() {
			return at.Unix()
		}
		return 0
	})
	return l
}

// Load compiles the files and puts the rules in force. If it fails, the rules already loaded stay in force. If ctx ends
// during the load, Load changes nothing and records nothing.
func (l *Loader) Load(ctx context.Context, files []rulefile.File) error {
	return l.load(ctx, func(o limits.Options) (*limits.Rules, []limits.Problem, error) {
		return rulefile.Load(ctx, files, o)
	})
}

// LoadResources is Load for resources that a control plane has sent.
func (l *Loader) LoadResources(ctx context.Context, resources [][]byte) error {
	return l.load(ctx, func(o limits.Options) (*limits.Rules, []limits.Problem, error) {
		return rulefile.LoadResources(ctx, resources, o)
	})
}

// load calls compile and puts the rules that it returns in force.
func (l *Loader) load(ctx context.Context,
	compile func(limits.Options) (*limits.Rules, []limits.Problem, error)) error {
	l.loading.Lock()
	defer l.loading.Unlock()
	start := time.Now()
	o := l.options
	o.Paced = l.State().Generation > 0 // requests wait only for the first load, so it takes no pauses
	rules, warnings, err := compile(o)
	if ctx.Err() != nil {
		return context.Cause(ctx) // the daemon is stopping: the set is not at fault
	}
	if err != nil {
		l.refused(err)
		return err
	}
	before := l.service.Rules()
	l.service.SetRules(rules)
	l.options.Stats.Retain(rules.StatsHandles())

	state := LoadState{LoadedAt: time.Now(), Generation: l.State().Generation + 1, Domains: len(rules.Domains())}
	for _, d := range rules.Domains() {
		state.Files = append(state.Files, d.Files...)
	}
	slices.Sort(state.Files)
	for _, w := range warnings {
		state.Warnings = append(state.Warnings, w.String())
		l.log.Warn("configuration: " + w.String())
	}
	l.state.Store(&state)
	l.good.Inc() // last, so that a reader who sees the new count sees the new state
	attributes := []any{"domains", state.Domains, "files", len(state.Files), "took", time.Since(start)}
	if before != nil {
		changes := rules.ChangesSince(before)
		attributes = append(attributes, "added", changes.Added, "removed", changes.Removed, "changed", changes.Changed)
		if len(changes.First) > 0 {
			attributes = append(attributes, "first", changes.First)
		}
	}
	l.log.Info("configuration loaded", attributes...)
	if zones := rules.Zones(); len(zones) > 0 {
		l.log.Info("time zone data of calendars", "source", zoneSources(zones), "zones", zones)
	}
	l.onLoaded(state.Domains)
	if rules.Much() {
		debug.FreeOSMemory()
	}
	return nil
}

// Refuse records that no set could be read at all. err is the reason.
func (l *Loader) Refuse(err error) {
	l.loading.Lock()
	defer l.loading.Unlock()
	l.refused(err)
}

func (l *Loader) refused(err error) {
	state := l.State()
	repeated := state.Error == err.Error()
	state.Error, state.ErrorAt = err.Error(), time.Now()
	l.state.Store(&state)
	l.bad.Inc() // last, so that a reader who sees the new count sees the new state
	keeping := "keeping the rules already loaded"
	if state.Generation == 0 {
		keeping = "there are no rules yet"
	}
	if repeated { // one change can be loaded twice, by a file event and by SIGHUP; or a file was only touched
		l.log.Info("configuration still refused for the same reasons, " + keeping)
		return
	}
	if rejection, ok := errors.AsType[*limits.Rejection](err); ok {
		err = fmt.Errorf("%d problem(s): %w", len(rejection.Problems), err)
	}
	l.log.Error("configuration refused, "+keeping, "error", err)
}

// State returns the state of the configuration. It never waits for a load, which may take seconds: scrapes of the
// metrics call State too.
func (l *Loader) State() LoadState { return *l.state.Load() }

// zoneSources returns where the data of the time zones comes from, for the log: all replicas must have the same data.
func zoneSources(zones []string) string {
	var sources []string
	for _, zone := range zones {
		sources = append(sources, calendar.Source(zone))
	}
	slices.Sort(sources)
	return strings.Join(slices.Compact(sources), ", ")
}
