package promexport

import (
	"time"

	"github.com/prometheus/statsd_exporter/pkg/mapper"

	"gatehouse/ratelimit/internal/stats"
)

// seen is the target to which a mapping file maps one series, and when the series changed last.
type seen struct {
	target
	labels []stats.Tag
	into   string // the metric and labels under which the series is shown, possibly added up with other series
	kind   kind
	value  float64
	since  time.Time
	round  int // the last scrape in which the registry had the series
}

// lost is the count of names that the registry has forgotten, for a series that is the sum of several names. Without
// this count the sum would decrease, and Prometheus would assume a restart of the daemon.
type lost struct {
	*seen // that of one of the forgotten names
	value float64
}

// writeMapped writes everything except timers as the mapping file says. Like a statsd exporter, it does not write
// counters that never counted, and drops a series with a ttl if scrapes have seen no change for that time.
func (p *Page) writeMapped(w *writer) {
	all, alive := families{}, map[string]bool{}
	p.round++
	now := time.Now()
	show := func(name string, tags []stats.Tag, k kind, value float64) {
		if k == counter && value == 0 {
			return
		}
		s := p.lookup(name, tags, k)
		if s.value != value || s.since.IsZero() {
			s.value, s.since = value, now
		}
		if s.drop || s.ttl > 0 && now.Sub(s.since) > s.ttl {
			return
		}
		alive[s.into] = true
		all.of(w, s.name, k, s.help).add(s.labels, value*s.scale)
	}
	p.Stats.Named(func(s stats.Series, k stats.Kind, value float64) { show(s.Name, s.Tags, kinds[k], value) })
	for _, r := range append(p.Stats.Rules(), p.Stats.Limits()...) {
		for i := range stats.RuleStats {
			if name := r.StatName(i); name != "" {
				show(name, p.extra, counter, float64(r.Stat(i).Value()))
			}
		}
	}
	p.forget()
	for into, l := range p.lost {
		if alive[into] {
			all.of(w, l.name, counter, l.help).add(l.labels, l.value)
		} else {
			delete(p.lost, into)
		}
	}
	all.write(w)
}

// lookup returns the target to which the mapping file maps a series.
func (p *Page) lookup(name string, tags []stats.Tag, k kind) *seen {
	id := name
	if len(tags) > len(p.extra) {
		id += "\x00" + identity(tags)
	}
	s := p.seen[id]
	if s == nil {
		t := mapper.MetricTypeCounter
		if k == gauge {
			t = mapper.MetricTypeGauge
		}
		s = &seen{target: p.Mapping.of(name, t), kind: k}
		s.labels = s.tags(tags)
		s.into = s.name + "\x00" + identity(s.labels)
		p.seen[id] = s
	}
	s.round = p.round
	return s
}

// forget drops the series that the registry has forgotten since the previous scrape.
func (p *Page) forget() {
	for id, s := range p.seen {
		if s.round == p.round {
			continue
		}
		delete(p.seen, id)
		if s.kind == counter && !s.drop {
			p.lost[s.into] = lost{s, p.lost[s.into].value + s.value*s.scale}
		}
	}
}
