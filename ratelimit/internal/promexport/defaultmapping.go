package promexport

import (
	"cmp"
	_ "embed"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"

	"gatehouse/ratelimit/internal/stats"
)

// This file has the default mapping, which the table in docs/statistics.md#pull-metrics describes, for everything but
// times, which times.go maps.

// writeDefault writes all statistics except the statistics of rules and times.
func (p *Page) writeDefault(w *writer) {
	all := families{}
	p.Stats.Named(func(s stats.Series, k stats.Kind, value float64) {
		name, own := defaultName(s.Name, kinds[k])
		all.of(w, name, kinds[k], helpOf(name)).add(p.labels(s, own...), value)
	})
	all.write(w)
}

// labels returns the labels of a series: its own labels and its tags.
func (p *Page) labels(s stats.Series, own ...stats.Tag) []stats.Tag {
	return with(labelsOf(s.Tags), own...)
}

// defaultName returns the name and labels for a counter or gauge. A name that is not in the table of docs/statistics.md
// is kept, with `_` for characters that a metric's name must not have.
func defaultName(name string, k kind) (string, []stats.Tag) {
	if k == counter {
		if part, ok := strings.CutPrefix(name, "ratelimit.service.call.should_rate_limit."); ok &&
			part != "" && !strings.Contains(part, ".") {
			return "ratelimit_service_should_rate_limit_error", []stats.Tag{{Name: "err_type", Value: part}}
		}
		if method, ok := methodOf(name, ".total_requests"); ok {
			return "ratelimit_service_total_requests", []stats.Tag{{Name: "grpc_method", Value: method}}
		}
		if domain, ok := unknownDomain(name); ok {
			return "ratelimit_service_rate_limit_domain_not_found", []stats.Tag{{Name: "domain", Value: domain}}
		}
		if domain, ok := strings.CutPrefix(name, stats.NoMatchPrefix); ok {
			return "ratelimit_service_no_match", []stats.Tag{{Name: "domain", Value: domain}}
		}
	}
	return clean(name), nil
}

// unknownDomain returns the domain in the name of a counter for a domain without rules.
func unknownDomain(name string) (string, bool) {
	rest, ok := strings.CutPrefix(name, stats.RulePrefix)
	if !ok {
		return "", false
	}
	return strings.CutSuffix(rest, stats.NotFoundSuffix)
}

// methodOf returns the part of name that stands for the star in ratelimit_server.*<suffix>.
func methodOf(name, suffix string) (string, bool) {
	rest, ok := strings.CutPrefix(name, "ratelimit_server.")
	if !ok {
		return "", false
	}
	method, ok := strings.CutSuffix(rest, suffix)
	return method, ok && method != "" && !strings.Contains(method, ".")
}

// rules writes the rules that were hit, with the parts of their keys as the labels domain, key1 and key2. Rules with
// more than three parts are added up under the labels of their first three. All counters of a rule are written from its
// first hit on, except for two counters that few rules need.
func (p *Page) rules(w *writer) {
	hit := p.Stats.Rules()
	for i := range hit {
		hit[i].Key = threeParts(hit[i].Key)
	}
	slices.SortFunc(hit, func(a, b stats.RuleSeries) int { return cmp.Compare(a.Key, b.Key) })

	lines := newRuleLines(p.extra)
	for stat, name := range stats.RuleStats {
		metric := "ratelimit_service_rate_limit_" + name
		if !w.claim(metric, counter) {
			continue
		}
		lines.begin(w, metric, helpOf(metric))
		rare := name == "shadow_mode" || name == "over_limit_with_local_cache"
		for i := 0; i < len(hit); {
			key, sum := hit[i].Key, uint64(0)
			for ; i < len(hit) && hit[i].Key == key; i++ {
				sum += hit[i].Stat(stat).Value()
			}
			if sum != 0 || !rare {
				lines.add(w, key, float64(sum))
			}
		}
		lines.end(w)
	}
}

// limits writes the limits in rate_limits lists that were hit, with the labels of their rules and a label of their own.
// It writes shadow_mode only once it has counted.
func (p *Page) limits(w *writer) {
	all := families{}
	for _, l := range p.Stats.Limits() {
		key, label, _ := stats.CutLabel(l.Key)
		var labels []stats.Tag
		for i, part := range strings.SplitN(threeParts(key), ".", 3) {
			if part != "" || i == 1 {
				labels = append(labels, stats.Tag{Name: partNames[i], Value: part})
			}
		}
		labels = append(labels, stats.Tag{Name: "limit", Value: label})
		for i, stat := range stats.RuleStats {
			if value := l.Stat(i).Value(); slices.Contains(stats.LimitStats, stat) &&
				(value != 0 || stat != "shadow_mode") {
				name := "ratelimit_service_limit_" + stat
				all.of(w, name, counter, helpOf(name)).add(with(p.extra, slices.Clone(labels)...), float64(value))
			}
		}
	}
	all.write(w)
}

// threeParts returns the first three parts of a rule's key, without dots at the end. A dot at the end would make an
// empty label, which is the same as a missing label, so keys that differ only in such dots would be two series with the
// same labels.
func threeParts(key string) string {
	dots := 0
	for i := range len(key) {
		if key[i] == '.' {
			if dots++; dots == 3 {
				key = key[:i]
				break
			}
		}
	}
	return strings.TrimRight(key, ".")
}

// ruleLines turns rules into lines of the page, one chunk after the other in the same memory.
type ruleLines struct {
	family dto.MetricFamily
	slots  [chunk]ruleSlot
	n      int
	first  bool
}

type ruleSlot struct {
	metric  dto.Metric
	counter dto.Counter
	value   float64
	parts   [3]string
	own     [3]dto.LabelPair
	// pairs has the label pairs for keys of one, two and three parts: one, two or three labels of the rule, and the
	// labels that all series have.
	pairs [3][]*dto.LabelPair
}

var partNames = [3]string{"domain", "key1", "key2"}

func newRuleLines(extra []stats.Tag) *ruleLines {
	l := &ruleLines{}
	common := pairs(extra)
	for i := range l.slots {
		s := &l.slots[i]
		var own []*dto.LabelPair
		for j := range s.own {
			s.own[j].Name, s.own[j].Value = &partNames[j], &s.parts[j]
			own = append(own, &s.own[j])
			s.pairs[j] = slices.Concat(own, common)
		}
		s.counter.Value, s.metric.Counter = &s.value, &s.counter
	}
	l.family.Metric = make([]*dto.Metric, 0, chunk)
	return l
}

func (l *ruleLines) begin(w *writer, name, help string) {
	l.family.Name, l.family.Help, l.family.Type = &name, &help, counter.Enum()
	l.n, l.first = 0, true
}

// add adds one series. It leaves out empty labels: key1 and key2 of a key with one part, key2 of a key with two.
func (l *ruleLines) add(w *writer, key string, value float64) {
	s := &l.slots[l.n]
	s.parts[0], key, _ = strings.Cut(key, ".")
	s.parts[1], s.parts[2], _ = strings.Cut(key, ".")
	own := 3
	for own > 1 && s.parts[own-1] == "" {
		own--
	}
	s.metric.Label = s.pairs[own-1]
	s.value = value
	l.family.Metric = append(l.family.Metric, &s.metric)
	if l.n++; l.n == chunk {
		l.end(w)
	}
}

func (l *ruleLines) end(w *writer) {
	w.encode(&l.family, l.first)
	l.family.Metric, l.n, l.first = l.family.Metric[:0], 0, false
}

// help is the help text of metrics whose names come from a mapping file.
const help = "A statistic of ratelimit; its README says what it counts."

// helpText has the help texts of all metrics in the default mapping: a line for each, beginning with the metric's name.
//
//go:embed help.txt
var helpText string

var helps = func() map[string]string {
	m := map[string]string{}
	for line := range strings.Lines(helpText) {
		name, text, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		m[name] = text
	}
	return m
}()

func helpOf(name string) string {
	if h, ok := helps[name]; ok {
		return h
	}
	return help
}
