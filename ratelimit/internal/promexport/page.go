// Package promexport serves the statistics to scrapers in Prometheus' text exposition format, read from the live
// counters at each scrape.
//
// The default mapping gives the series of rules, methods and errors labels instead of names; a mapping file in the
// statsd exporter's format replaces it. Prometheus' own libraries write names and lines. A scrape of the default
// mapping needs memory for the list of rules that were hit and for one chunk of lines, whatever the number of series;
// it takes no lock that a request takes. Only one scrape runs at a time.
package promexport

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"gatehouse/ratelimit/internal/stats"
)

// Settings of a Page.
type Settings struct {
	// true: `ratelimit_service_response_time_seconds` holds milliseconds in spite of its name, as old dashboards may
	// want; no effect with a mapping file.
	Milliseconds bool `env:"PULLMETRICS_RESPONSE_TIME_AS_MILLISECONDS" envDefault:"false"`
}

// Options of a Page. Stats is required.
type Options struct {
	Settings
	// Stats is the registry that is shown. New must be called before its Run.
	Stats *stats.Registry
	// Mapping replaces the default mapping; nil keeps it.
	Mapping *Mapping
	// Build has the labels of ratelimit_build_info, which is 1; without labels it is not shown.
	Build []stats.Tag
	Log   *slog.Logger
}

// Page is the HTTP handler of the exposition.
type Page struct {
	Options
	extra    []stats.Tag // as labels
	own      *prometheus.Registry
	times    times
	conflict *stats.Counter

	turn  chan struct{} // held during a scrape; guards the fields below
	zip   *gzip.Writer
	told  map[string]bool // names of conflicts that have been logged
	seen  map[string]*seen
	lost  map[string]lost // of mapped series, by metric and labels
	round int
}

// New returns a Page and has the registry pass it timer values.
func New(o Options) *Page {
	p := &Page{
		Options: o, extra: labelsOf(o.Stats.ExtraTags()), own: prometheus.NewRegistry(),
		conflict: o.Stats.Counter("ratelimit.stats.scrape_conflicts"),
		turn:     make(chan struct{}, 1), told: map[string]bool{}, seen: map[string]*seen{}, lost: map[string]lost{},
	}
	p.own.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewBuildInfoCollector())
	p.times = times{mapping: p.timeMapping, all: map[string]*timer{}, by: map[string]*timer{}}
	o.Stats.OnTime(p.times.observe)
	if o.Mapping == nil {
		o.Stats.GroupRules(threeParts)
	}
	return p
}

// ServeHTTP implements http.Handler.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "GET or HEAD", http.StatusMethodNotAllowed)
		return
	}
	select {
	case p.turn <- struct{}{}:
	case <-r.Context().Done():
		return
	}
	defer func() { <-p.turn }()
	w.Header().Set("Content-Type", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
	w.Header().Set("Cache-Control", "no-store")
	if r.Method == http.MethodHead {
		return
	}
	out := io.Writer(w)
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		w.Header().Set("Content-Encoding", "gzip")
		if p.zip == nil {
			p.zip, _ = gzip.NewWriterLevel(nil, gzip.BestSpeed)
		}
		p.zip.Reset(w)
		defer p.zip.Close()
		out = p.zip
	}
	b := bufio.NewWriterSize(out, 32<<10)
	defer b.Flush() // before the compressor is closed
	if err := p.write(b); err != nil {
		p.Log.Debug("pull metrics: a scrape was not written to its end", "error", err)
	}
}

// write is one scrape: the daemon's own series, rules, times, Go and the process.
func (p *Page) write(w *bufio.Writer) error {
	out := &writer{w: w, page: p, kinds: map[string]kind{}}
	theirs, err := p.own.Gather()
	if err != nil {
		return fmt.Errorf("go and process metrics: %w", err)
	}
	for _, f := range theirs {
		out.kinds[f.GetName()] = taken
		for _, m := range f.Metric {
			m.Label = p.joined(m.Label)
		}
	}
	p.buildInfo(out)
	if p.Mapping == nil {
		p.writeDefault(out)
		p.rules(out)
		p.limits(out)
	} else {
		p.writeMapped(out)
	}
	p.times.write(out, p.Stats.Timers())
	for _, f := range theirs {
		out.encode(f, true)
	}
	return out.err
}

// joined adds the labels of all series to those of a collector's series. The series' own labels win: go_info has a
// version.
func (p *Page) joined(own []*dto.LabelPair) []*dto.LabelPair {
	tags := make([]stats.Tag, len(own))
	for i, l := range own {
		tags[i] = stats.Tag{Name: l.GetName(), Value: l.GetValue()}
	}
	return pairs(with(p.extra, tags...))
}

// buildInfo shows which program this is, under the same name with a mapping file, too.
func (p *Page) buildInfo(w *writer) {
	if len(p.Build) == 0 {
		return
	}
	all := families{}
	all.of(w, buildInfo, gauge, helpOf(buildInfo)).add(with(p.extra, slices.Clone(p.Build)...), 1)
	all.write(w)
}

const buildInfo = "ratelimit_build_info"

// labelsOf turns tags' names into label names. Of two that become equal the first stays.
func labelsOf(tags []stats.Tag) []stats.Tag {
	var labels []stats.Tag
	seen := map[string]bool{}
	for _, t := range tags {
		t.Name = clean(t.Name)
		if !seen[t.Name] {
			seen[t.Name] = true
			labels = append(labels, t)
		}
	}
	return labels
}

// LabelClash returns why the tags cannot all be labels, "" if they can: metrics or Prometheus already use a name, or
// two names become equal.
func LabelClash(tags map[string]string) string {
	made := map[string]string{}
	for name := range tags {
		label := clean(name)
		switch {
		case reserved[label]:
			return fmt.Sprintf("%q is a label that metrics have themselves", name)
		case strings.HasPrefix(label, "__"):
			return fmt.Sprintf(
				"%q would be a label that Prometheus keeps to itself: no name may begin with two underscores",
				name)
		case made[label] != "":
			return fmt.Sprintf("%q and %q both become the label %s", min(name, made[label]), max(name, made[label]),
				label)
		}
		made[label] = name
	}
	return ""
}

var reserved = map[string]bool{"domain": true, "key1": true, "key2": true, "err_type": true, "grpc_method": true,
	"le": true, "quantile": true, "code": true}

// clean replaces by `_` every byte that the name of a label or metric must not have, and puts `_` before a leading
// digit.
func clean(s string) string {
	if s == "" || isDigit(s[0]) {
		s = "_" + s
	}
	b := []byte(s)
	for i, c := range b {
		if c != '_' && !isDigit(c) && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			b[i] = '_'
		}
	}
	return string(b)
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }
