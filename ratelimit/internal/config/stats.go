package config

import (
	"errors"
	"io/fs"
	"net"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"time"

	"gatehouse/ratelimit/internal/promexport"
	"gatehouse/ratelimit/internal/stats"
	"gatehouse/shared/settings"
)

// Stats has the settings that say where statistics are sent.
type Stats struct {
	// true: statistics are only shown at /stats; wins over all sinks.
	Disable bool `env:"DISABLE_STATS" envDefault:"false"`
	// true: plain statsd; false, and no other sink: JSON lines on standard output. If another sink is configured, the
	// default is false.
	Statsd bool `env:"USE_STATSD" envDefault:"true"`
	// Host of the statsd server, plain or tagged. While the server is unavailable, counts are kept and no request
	// waits.
	Host string `env:"STATSD_HOST" envDefault:"localhost"`
	// Port of the statsd server.
	Port int `env:"STATSD_PORT" envDefault:"8125" min:"1" max:"65535"`
	// tcp or udp. Tagged statsd uses UDP unless this variable is set to tcp.
	Protocol string `env:"STATSD_PROTOCOL" envDefault:"tcp" oneof:"tcp udp" fold:"true"`
	// Pause between flushes of counters and gauges; times go out within a second.
	FlushInterval time.Duration `env:"STATS_FLUSH_INTERVAL" envDefault:"10s" min:"1ms"`
	Registry      stats.Settings
	// true: statsd with tags behind the value, as DogStatsD reads it.
	Tagged bool `env:"USE_TAGGED_STATSD" envDefault:"false"`
	// Names of the mogrifiers, which turn parts of a statistic's name into tags, in the order in which they are tried.
	// Each has TAGGED_STATSD_MOGRIFIER_<name>_PATTERN, _NAME and _TAGS.
	Mogrifiers []string `env:"TAGGED_STATSD_MOGRIFIERS"`
	// true: the statistics are served at PULLMETRICS_ADDR and PULLMETRICS_PATH in Prometheus' text format, next to
	// statsd if USE_STATSD or USE_TAGGED_STATSD is true.
	Pull bool `env:"USE_PULLMETRICS" envDefault:"false"`
	// host:port of the listener for pull metrics; without a host every address, with port 0 a free port.
	PullAddr string `env:"PULLMETRICS_ADDR" envDefault:":9090"`
	// The one path that is served at PULLMETRICS_ADDR.
	PullPath string `env:"PULLMETRICS_PATH" envDefault:"/metrics"`
	// A mapping file of the statsd exporter's format in place of the default mapping.
	MapperYAML string `env:"PULLMETRICS_MAPPER_YAML"`
	Page       promexport.Settings

	assumed    bool                // set by check if statsd is the sink only because no setting names one
	mogrifiers []stats.Mogrifier   // set by check from Mogrifiers
	mapping    *promexport.Mapping // set by check from MapperYAML
}

// Assumed reports whether statistics are sent to statsd's default address only because no setting says where to send
// them. There may be no statsd then.
func (s *Stats) Assumed() bool { return s.assumed }

// Patterns returns the mogrifiers that the setting TAGGED_STATSD_MOGRIFIERS names, in its order.
func (s *Stats) Patterns() []stats.Mogrifier { return s.mogrifiers }

// Mapping returns the mapping read from the file PULLMETRICS_MAPPER_YAML; nil means the default mapping.
func (s *Stats) Mapping() *promexport.Mapping { return s.mapping }

// mogrifierPrefix begins the names of the variables that configure mogrifiers.
const mogrifierPrefix = "TAGGED_STATSD_MOGRIFIER_"

// checkStats determines where statistics are sent and reads the files needed for that.
func (c *Config) checkStats(r *settings.Report) {
	s := &c.Stats
	other := s.Tagged || s.Pull
	if other && !r.IsSet("USE_STATSD") {
		s.Statsd = false
	}
	if s.Tagged && !r.IsSet("STATSD_PROTOCOL") {
		s.Protocol = "udp"
	}
	s.assumed = s.Statsd && !s.Tagged && !s.Disable &&
		!slices.ContainsFunc([]string{"STATSD_HOST", "STATSD_PORT", "USE_STATSD"}, r.IsSet)
	if s.Tagged && s.Statsd {
		r.Clash("USE_STATSD and USE_TAGGED_STATSD are both true, and both go to STATSD_HOST: one of them counts " +
			"everything a second time there")
	}
	if s.Tagged && s.Pull && !s.Disable {
		r.Warn("USE_TAGGED_STATSD and USE_PULLMETRICS are both true: both get every statistic")
	}
	if s.Disable && (other || r.IsSet("USE_STATSD") && s.Statsd) {
		r.Warn("DISABLE_STATS=true wins over the other sinks: none of them gets anything")
	}
	s.checkMogrifiers(r)
	s.checkPull(r)
}

func (s *Stats) checkMogrifiers(r *settings.Report) {
	named := map[string]bool{}
	for _, name := range s.Mogrifiers {
		prefix := mogrifierPrefix + strings.ToUpper(name)
		pattern, to, tags := prefix+"_PATTERN", prefix+"_NAME", prefix+"_TAGS"
		named[pattern], named[to], named[tags] = true, true, true
		missing := false
		for _, v := range []string{pattern, to} {
			if !r.IsSet(v) {
				missing = true
				r.Wrong("TAGGED_STATSD_MOGRIFIERS", "%s needs %s, which is not set", name, v)
			}
		}
		if missing {
			continue
		}
		m, err := stats.NewMogrifier(r.Text(pattern), r.Text(to), r.Text(tags))
		if _, bad := errors.AsType[*syntax.Error](err); bad {
			r.Wrong(pattern, "%v", err)
		} else if err != nil {
			r.Wrong(tags, "%v", err)
		}
		s.mogrifiers = append(s.mogrifiers, m)
	}
	for _, name := range r.Names() {
		if strings.HasPrefix(name, mogrifierPrefix) && !named[name] {
			r.Warn("%s has no effect: TAGGED_STATSD_MOGRIFIERS names no mogrifier that has it", name)
		}
	}
	if len(s.Mogrifiers) > 0 && !s.Tagged {
		r.Warn("TAGGED_STATSD_MOGRIFIERS has no effect: USE_TAGGED_STATSD is not true")
	}
}

func (s *Stats) checkPull(r *settings.Report) {
	if _, port, err := net.SplitHostPort(s.PullAddr); err != nil {
		r.Wrong("PULLMETRICS_ADDR", "not host:port, such as :9090 or 127.0.0.1:9090")
	} else if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		r.Wrong("PULLMETRICS_ADDR", "its port must be a number, at most 65535")
	}
	if !strings.HasPrefix(s.PullPath, "/") {
		r.Wrong("PULLMETRICS_PATH", "must begin with /")
	}
	if s.MapperYAML != "" {
		var err error
		s.mapping, err = promexport.LoadMapping(s.MapperYAML)
		if was := r.Spelled("PULLMETRICS_MAPPER_YAML"); errors.Is(err, fs.ErrNotExist) &&
			was != "PULLMETRICS_MAPPER_YAML" {
			// Only warn: with the old name, manifests for envoyproxy/ratelimit name a file of a ConfigMap that is
			// optional.
			r.Warn(
				"%s=%q does not exist: the default mapping is used; PULLMETRICS_MAPPER_YAML refuses the start instead",
				was, s.MapperYAML)
		} else if err != nil {
			r.Wrong("PULLMETRICS_MAPPER_YAML", "%v", err)
		}
	}
	if !s.Pull {
		noEffect(r, []string{"PULLMETRICS_ADDR", "PULLMETRICS_PATH", "PULLMETRICS_MAPPER_YAML",
			"PULLMETRICS_RESPONSE_TIME_AS_MILLISECONDS"}, "without USE_PULLMETRICS=true")
		return
	}
	if clash := promexport.LabelClash(s.Registry.ExtraTags); clash != "" {
		r.Wrong("EXTRA_TAGS", "%s", clash)
	}
	if s.Page.Milliseconds && s.mapping != nil {
		r.Warn("PULLMETRICS_RESPONSE_TIME_AS_MILLISECONDS has no effect: PULLMETRICS_MAPPER_YAML says what becomes " +
			"of times")
	}
}
