package promexport

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/statsd_exporter/pkg/mapper"

	"gatehouse/ratelimit/internal/stats"
)

// Mapping is a mapping file in the format of Prometheus' statsd exporter. It maps the dotted names in
// docs/statistics.md, without tags. Timers are in milliseconds.
type Mapping struct{ m *mapper.MetricMapper }

// LoadMapping reads a mapping file. It also understands old names of keys (timer_type, buckets, quantiles). The error
// has the line, and says what is wrong there.
func LoadMapping(path string) (*Mapping, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parseMapping(string(text))
}

func parseMapping(text string) (_ *Mapping, err error) {
	defer func() { // the libraries panic on some texts that are not mapping files (FuzzParseMapping)
		if p := recover(); p != nil {
			err = fmt.Errorf("not a mapping file: %v", p)
		}
	}()
	m := &mapper.MetricMapper{}
	first := load(m, text)
	if first == nil {
		return &Mapping{m}, nil
	}
	var doc yaml.MapSlice
	if err := yaml.UnmarshalWithOptions([]byte(text), &doc, yaml.UseOrderedMap()); err != nil {
		return nil, first // text is not YAML, or no map; the library's error has the line
	}
	doc, _ = textKeys(doc).(yaml.MapSlice)
	if modernize(doc) {
		if first = initFrom(m, doc, -1); first == nil {
			return &Mapping{m}, nil
		}
	} else if lines, yes := strings.CutPrefix(first.Error(), unmarshalErrors); yes { // the library's lines are right
		return nil, errors.New(strings.ReplaceAll(strings.ReplaceAll(lines, "\n ", "\n   "), "mapper.", ""))
	}
	return nil, located(text, doc, first)
}

// unmarshalErrors begins the YAML library's message about values of wrong types, which has a line number for each.
const unmarshalErrors = "yaml: unmarshal errors:\n  "

// textKeys converts the keys of all maps to strings, since the YAML library cannot write keys of other types.
func textKeys(v any) any {
	switch v := v.(type) {
	case yaml.MapSlice:
		for i := range v {
			v[i].Key, v[i].Value = fmt.Sprint(v[i].Key), textKeys(v[i].Value)
		}
	case []any:
		for i := range v {
			v[i] = textKeys(v[i])
		}
	}
	return v
}

// initFrom loads doc with only the first n of its mappings; with all of them if n is -1.
func initFrom(m *mapper.MetricMapper, doc yaml.MapSlice, n int) error {
	cut := make(yaml.MapSlice, 0, len(doc))
	for _, item := range doc {
		if list, ok := item.Value.([]any); ok && item.Key == "mappings" && n >= 0 {
			item.Value = list[:n]
		}
		cut = append(cut, item)
	}
	b, err := yaml.Marshal(cut)
	if err != nil {
		return err
	}
	return load(m, string(b))
}

// load loads a mapping file. It also returns an error for texts that the library accepts but that would make it panic
// when the mapping is used.
func load(m *mapper.MetricMapper, text string) error {
	if err := m.InitFromYAMLString(text); err != nil {
		return err
	}
	if m.Defaults.SummaryOptions.MaxAge < 0 {
		return errMaxAge
	}
	for i := range m.Mappings {
		if o := m.Mappings[i].SummaryOptions; o != nil && o.MaxAge < 0 {
			return errMaxAge
		}
		if o := m.Mappings[i].HistogramOptions; o != nil && !slices.IsSorted(o.Buckets) {
			return errBuckets
		}
	}
	if !slices.IsSorted(m.Defaults.HistogramOptions.Buckets) {
		return errBuckets
	}
	return nil
}

var (
	errMaxAge  = errors.New("max_age must not be negative")
	errBuckets = errors.New("buckets must rise")
)

// located returns err with the number of the line that is wrong. The library gives line numbers only for errors in
// YAML, so located looks for the first mapping that cannot be loaded together with the mappings before it.
func located(text string, doc yaml.MapSlice, err error) error {
	list := 0
	for _, item := range doc {
		if l, ok := item.Value.([]any); ok && item.Key == "mappings" {
			list = len(l)
		}
	}
	for n := range list + 1 {
		if bad := initFrom(&mapper.MetricMapper{}, doc, n); bad != nil {
			what := "defaults"
			if n > 0 {
				what = fmt.Sprintf("mapping %d", n)
			}
			return fmt.Errorf("line %d: %s: %s", lineOf(text, n), what, reason(bad))
		}
	}
	return err
}

// reason returns the library's message without its line numbers, which are wrong or missing.
func reason(err error) string {
	s := strings.TrimPrefix(err.Error(), unmarshalErrors)
	if rest, ok := strings.CutPrefix(s, "line "); ok {
		if _, after, ok := strings.Cut(rest, ": "); ok {
			s = after
		}
	}
	return strings.ReplaceAll(s, "mapper.", "")
}

// lineOf returns the line on which mapping n begins; mappings are counted from 1, and 0 stands for the defaults.
func lineOf(text string, n int) int {
	file, err := parser.ParseBytes([]byte(text), 0)
	if err != nil || len(file.Docs) == 0 {
		return 1
	}
	root, _ := file.Docs[0].Body.(*ast.MappingNode)
	if root == nil {
		return 1
	}
	for _, v := range root.Values {
		switch key := v.Key.String(); {
		case n == 0 && key != "mappings":
			return v.Key.GetToken().Position.Line
		case n > 0 && key == "mappings":
			if list, ok := v.Value.(*ast.SequenceNode); ok && n <= len(list.Values) {
				return firstToken(list.Values[n-1])
			}
		}
	}
	return 1
}

func firstToken(n ast.Node) int {
	if m, ok := n.(*ast.MappingNode); ok && len(m.Values) > 0 {
		return m.Values[0].Key.GetToken().Position.Line
	}
	if m, ok := n.(*ast.MappingValueNode); ok {
		return m.Key.GetToken().Position.Line
	}
	return n.GetToken().Position.Line
}

// modernize renames old keys: timer_type, match_metric_type: timer, and buckets and quantiles outside of the option
// maps that contain them in the present format. It reports whether it found any.
func modernize(doc yaml.MapSlice) (old bool) {
	for _, item := range doc {
		if entry, ok := item.Value.(yaml.MapSlice); ok && item.Key == "defaults" {
			old = modernizeEntry(entry) || old
		}
		if list, ok := item.Value.([]any); ok && item.Key == "mappings" {
			for _, v := range list {
				entry, _ := v.(yaml.MapSlice)
				old = modernizeEntry(entry) || old
			}
		}
	}
	return old
}

func modernizeEntry(entry yaml.MapSlice) (old bool) {
	for i := range entry {
		item := &entry[i]
		switch {
		case item.Key == "timer_type":
			item.Key, old = "observer_type", true
		case item.Key == "match_metric_type" && item.Value == "timer":
			item.Value, old = "observer", true
		case item.Key == "buckets":
			*item, old = yaml.MapItem{Key: "histogram_options", Value: yaml.MapSlice{*item}}, true
		case item.Key == "quantiles":
			*item, old = yaml.MapItem{Key: "summary_options", Value: yaml.MapSlice{*item}}, true
		}
	}
	return old
}

// target is the metric to which a mapping file maps one name.
type target struct {
	name, help string
	labels     map[string]string
	honor      bool
	scale      float64
	ttl        time.Duration
	drop       bool
	mapping    *mapper.MetricMapping // nil if no mapping matched
}

func (m *Mapping) of(name string, t mapper.MetricType) target {
	found, labels, ok := m.m.GetMapping(name, t)
	if !ok || found == nil {
		return target{name: clean(name), help: help, scale: 1, ttl: m.m.Defaults.Ttl}
	}
	to := target{
		name: clean(found.Name), help: found.HelpText, labels: labels, honor: found.HonorLabels,
		scale: 1, ttl: found.Ttl, drop: found.Action == mapper.ActionTypeDrop, mapping: found,
	}
	if to.help == "" {
		to.help = help
	}
	if found.Scale.Set {
		to.scale = found.Scale.Val
	}
	return to
}

// tags returns the mapping's labels together with the tags of a series. A label replaces a tag with the same name or,
// if the mapping has honor_labels, the tag replaces the label.
func (t *target) tags(tags []stats.Tag) []stats.Tag {
	var own []stats.Tag
	for name, value := range t.labels {
		own = append(own, stats.Tag{Name: name, Value: strings.ToValidUTF8(value, "_")})
	}
	if t.honor {
		return with(own, labelsOf(tags)...)
	}
	return with(labelsOf(tags), own...)
}

func (m *Mapping) timer(s stats.Series) (timeMapping, bool) {
	to := m.of(s.Name, mapper.MetricTypeObserver)
	if to.drop {
		return timeMapping{}, false
	}
	out := timeMapping{name: to.name, help: to.help, labels: to.tags(s.Tags), scale: to.scale, kind: summary}
	observer, defaults := m.m.Defaults.ObserverType, m.m.Defaults
	buckets, quantiles := defaults.HistogramOptions.Buckets, defaults.SummaryOptions
	if to.mapping != nil {
		if to.mapping.ObserverType != mapper.ObserverTypeDefault {
			observer = to.mapping.ObserverType
		}
		if o := to.mapping.HistogramOptions; o != nil && len(o.Buckets) > 0 {
			buckets = o.Buckets
		}
		if o := to.mapping.SummaryOptions; o != nil {
			quantiles = *o
		}
	}
	if observer == mapper.ObserverTypeHistogram {
		out.kind, out.buckets = histogram, buckets
		return out, true
	}
	out.summary = prometheus.SummaryOpts{
		Objectives: map[float64]float64{}, MaxAge: quantiles.MaxAge, AgeBuckets: quantiles.AgeBuckets,
		BufCap: quantiles.BufCap,
	}
	for _, q := range quantiles.Quantiles {
		out.summary.Objectives[q.Quantile] = q.Error
	}
	return out, true
}
