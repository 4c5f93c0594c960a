// Package promexport serves the statistics to Prometheus, in its text exposition format. It reads the live counters at
// each scrape.
//
// The default mapping gives series of rules, methods and errors labels instead of long names; a mapping file in the
// format of the statsd exporter can replace it. Prometheus' own libraries write names and lines. With the default
// mapping, a scrape needs memory for the list of rules that were hit and for one chunk of lines, however many series
// there are. It takes no lock that a request takes. Only one scrape runs at a time.
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

// Settings are the environment variables of a Page.
type Settings struct {
	// true: `ratelimit_service_response_time_seconds` holds milliseconds in spite of its name, for old dashboards; no
	// effect with a mapping file.
	Milliseconds bool `env:"PULLMETRICS_RESPONSE_TIME_AS_MILLISECONDS" envDefault:"false"`
}

// Options are what New needs. Stats is required.
type Options struct {
	Settings
	// Stats is the registry whose statistics are shown. New must be called before Stats.Run.
	Stats *stats.Registry
	// Mapping replaces the default mapping; nil keeps the default.
	Mapping *Mapping
	// Build has the labels of the metric ratelimit_build_info, whose value is 1. Without labels it is not shown.
	Build []stats.Tag
	Log   *slog.Logger
}

// Page is the HTTP handler that serves the page of statistics.
type Page struct {
	Options
	extra    []stats.Tag // EXTRA_TAGS as labels
	own      *prometheus.Registry
	times    times
	conflict *stats.Counter

	turn  chan struct{} // held during a scrape; guards the fields below
	zip   *gzip.Writer
	told  map[string]bool // names of conflicting metrics that have been logged
	seen  map[string]*seen
	lost  map[string]lost // by metric and labels of the series
	round int
}

// New returns a Page, and makes the registry pass timer values to it.
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
	defer b.Flush() // runs before the gzip writer is closed
	if err := p.write(b); err != nil {
		p.Log.Debug("pull metrics: a scrape was not written to its end", "error", err)
	}
}

// write writes the page for one scrape: the daemon's statistics, times, and the metrics of Go and of the process.
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

// joined returns the labels of a series of Prometheus' own collectors together with the labels of all series. The
// series' labels win: go_info, for example, has a label version.
func (p *Page) joined(own []*dto.LabelPair) []*dto.LabelPair {
	tags := make([]stats.Tag, len(own))
	for i, l := range own {
		tags[i] = stats.Tag{Name: l.GetName(), Value: l.GetValue()}
	}
	return pairs(with(p.extra, tags...))
}

// buildInfo writes the metric that says which build of the program this is. It has the same name with a mapping file.
func (p *Page) buildInfo(w *writer) {
	if len(p.Build) == 0 {
		return
	}
	all := families{}
	all.of(w, buildInfo, gauge, helpOf(buildInfo)).add(with(p.extra, slices.Clone(p.Build)...), 1)
	all.write(w)
}

const buildInfo = "ratelimit_build_info"

// labelsOf turns tags into labels. Characters that a label's name must not have are replaced; if two names become equal
// by that, the first tag is kept.
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

// LabelClash returns the reason why the tags cannot all become labels: metrics or Prometheus use one of the names
// already, or two names become equal. It returns an empty string if there is no such reason.
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

// clean returns s as a name of a label or metric: with `_` for every byte that such a name must not have, and after a
// `_` if it begins with a digit or is empty.
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
