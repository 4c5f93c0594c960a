package promexport

import (
	"time"

	"github.com/prometheus/statsd_exporter/pkg/mapper"

	"gatehouse/ratelimit/internal/stats"
)

// seen is the result of a mapping file for a series, and when the series last changed.
type seen struct {
	target
	labels []stats.Tag
	into   string // metric and labels in which it is counted, possibly with other series
	kind   kind
	value  float64
	since  time.Time
	round  int // the last scrape in which it occurred
}

// lost is the counts of forgotten names in a series that also counts other names. Without them the sum would decrease,
// and a counter that decreases is read as a reset.
type lost struct {
	*seen // one of the forgotten names
	value float64
}

// writeMapped shows everything but timers as the mapping file says. A counter that never counted is not shown, as in a
// statsd exporter; a series with a ttl is dropped when scrapes have seen no change for that long.
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

// lookup returns the result of the mapping file for a series.
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

// forget drops the series that the registry has forgotten since the last scrape.
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
