package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"slices"
	"strings"
	"time"

	"gatehouse/ratelimit/internal/rls"
	"gatehouse/ratelimit/internal/service"
	"gatehouse/ratelimit/internal/stats"
)

// DebugSettings are the environment variables of the debug listener. The fields' comments are their documentation.
type DebugSettings struct {
	// Bearer token, of 16 bytes or more, that opens the guarded pages of the debug port, which has no TLS; unset: only
	// this host may read them. DEBUG_TOKEN_FILE reads it from a file.
	Token string `env:"DEBUG_TOKEN" secret:"true"`
}

// DebugOptions are what the debug listener needs.
type DebugOptions struct {
	DebugSettings
	Service *service.Service
	Loader  *service.Loader
	Stats   *stats.Registry
	Log     *slog.Logger
	// Version is the line that `ratelimit version` prints.
	Version string
	// ControlPlane returns the state of the control plane that sends the rules, as text and as a value for JSON. It is
	// nil if there is none.
	ControlPlane func() (text string, v any)
}

// page is one line of the debug port's index page.
type page struct {
	Path string `json:"path"`
	Help string `json:"help"`
}

var debugPages = []page{
	{"/counters", "guarded; the counters of a descriptor: ?domain=D&descriptor=k=v,k2=v2; DELETE resets them"},
	{"/debug/pprof/", "profiles of the running program: heap, goroutine, ..."},
	{"/debug/pprof/profile", "CPU profile, ?seconds=30"},
	{"/debug/pprof/trace", "execution trace, ?seconds=1"},
	{"/explain", "which rule decides: ?domain=D&descriptor=k=v,k2=v2, again for further descriptors; counts nothing"},
	{"/recent", "guarded; the last refused and the last unmatched descriptors, DEBUG_RECENT_SIZE: ?domain=D"},
	{"/rlconfig", "the rules in force, and what was refused since; more with ?format=json"},
	{"/stats", "every counter and gauge"},
	{"/tap", "guarded; decisions as they are made: ?domain=D&key=K&code=OVER_LIMIT&unmatched=true&seconds=60"},
	{"/top", "guarded; the keys with most hits in the last minute, DEBUG_TOP_KEYS: ?domain=D"},
}

// xdsPage is listed and served only if the rules come from a control plane.
var xdsPage = page{"/xds", "the control plane: connected or not, the version in force, what was refused last"}

// NewDebug returns the handler of the debug listener. Every page except for the profiles can also be JSON, with
// ?format=json. A guard protects the pages that show values of requests or change something. All other pages are open
// to every client except scripts of foreign web pages, so the port should be reachable for operators only.
func NewDebug(o DebugOptions) http.Handler {
	d := &debugPort{o}
	mux := http.NewServeMux()
	// Allow POST, which some programs use to fetch profiles.
	profile := func(path string, h http.HandlerFunc) {
		mux.HandleFunc(path, only(h, append(readMethods, http.MethodPost)...))
	}
	profile("/debug/pprof/", pprof.Index)
	profile("/debug/pprof/profile", pprof.Profile)
	profile("/debug/pprof/trace", pprof.Trace)
	page := func(path string, h http.HandlerFunc) { mux.HandleFunc(path, only(h, readMethods...)) }
	page("/explain", d.explain)
	page("/rlconfig", d.rlconfig)
	page("/stats", d.stats)
	if o.ControlPlane != nil {
		page(xdsPage.Path, d.xds)
	}
	guarded := guard{o.Token}
	mux.HandleFunc("/counters", guarded.page(d.counters, append(readMethods, http.MethodDelete)...))
	mux.HandleFunc("/tap", guarded.page(d.tap, readMethods...))
	mux.HandleFunc("/recent", guarded.page(d.recent, readMethods...))
	mux.HandleFunc("/top", guarded.page(d.top, readMethods...))
	page("/{$}", d.index)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		writeError(w, http.StatusNotFound, "NOT_FOUND", "there is no such page; / lists the pages")
	})
	return recovered(guarded.keepForeignOut(mux), o.Log, o.Stats.Counter(panicStat))
}

// only returns h restricted to the given methods: it answers 405 to all other methods.
func only(h http.HandlerFunc, methods ...string) http.HandlerFunc {
	allow := strings.Join(methods, ", ")
	return func(w http.ResponseWriter, r *http.Request) {
		if !slices.Contains(methods, r.Method) {
			w.Header().Set("Allow", allow)
			writeError(w, http.StatusMethodNotAllowed, "UNIMPLEMENTED", "this page takes "+allow)
			return
		}
		h(w, r)
	}
}

type debugPort struct{ DebugOptions }

func (d *debugPort) index(w http.ResponseWriter, r *http.Request) {
	pages := debugPages
	if d.ControlPlane != nil {
		pages = append(slices.Clip(pages), xdsPage)
	}
	var b bytes.Buffer
	for _, p := range pages {
		fmt.Fprintf(&b, "%s: %s\n", p.Path, p.Help)
	}
	respond(w, r, b.String(), struct {
		Version string `json:"version"`
		Pages   []page `json:"pages"`
	}{d.Version, pages})
}

func (d *debugPort) rlconfig(w http.ResponseWriter, r *http.Request) {
	rules, state := d.Service.Rules(), d.Loader.State()
	var b bytes.Buffer
	view := struct {
		Version string `json:"version"`
		service.LoadState
		Rules any `json:"rules"`
	}{Version: d.Version, LoadState: state, Rules: []any{}}
	if state.Error != "" {
		fmt.Fprintf(&b, "# refused at %s, and not in force:\n", state.ErrorAt.Format(time.RFC3339))
		for line := range strings.SplitSeq(state.Error, "\n") {
			fmt.Fprintf(&b, "# %s\n", line)
		}
	}
	if rules != nil {
		rules.WriteText(&b) // writing to a Buffer cannot fail
		view.Rules = rules.View()
	}
	respond(w, r, b.String(), view)
}

func (d *debugPort) stats(w http.ResponseWriter, r *http.Request) {
	var b bytes.Buffer
	values := map[string]any{}
	d.Stats.Each(func(name string, kind stats.Kind, value int64) {
		values[name] = value
		if kind == stats.KindCounter {
			values[name] = uint64(value)
		}
		fmt.Fprintf(&b, "%s: %d\n", name, values[name])
	})
	respond(w, r, b.String(), values)
}

func (d *debugPort) xds(w http.ResponseWriter, r *http.Request) {
	text, v := d.ControlPlane()
	respond(w, r, text, v)
}

func (d *debugPort) explain(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	if q.Get("domain") == "" {
		writeError(w, http.StatusBadRequest, "INVALID_ARGUMENT",
			"domain is missing: /explain?domain=D&descriptor=k=v,k2=v2")
		return
	}
	var descriptors [][]rls.Entry
	for _, text := range q["descriptor"] {
		entries, err := ParseDescriptor(text)
		if err != nil {
			writeError(w, http.StatusBadRequest, "INVALID_ARGUMENT", "descriptor: "+err.Error())
			return
		}
		descriptors = append(descriptors, entries)
	}
	if len(descriptors) == 0 {
		descriptors = [][]rls.Entry{nil}
	}
	x, err := d.Service.Explain(r.Context(), q.Get("domain"), descriptors...)
	switch {
	case err != nil:
		writeServiceError(w, err)
	case len(descriptors) == 1:
		respond(w, r, x.Text(), x.Descriptors[0])
	default:
		respond(w, r, x.Text(), x)
	}
}

// ParseDescriptor parses a descriptor in the form k=v,k2=v2, which the command client takes as -descriptors. Each pair
// is split at its first =. The empty text is a descriptor without entries.
func ParseDescriptor(text string) ([]rls.Entry, error) {
	if text == "" {
		return nil, nil
	}
	var entries []rls.Entry
	for pair := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return nil, fmt.Errorf("%q is no key=value pair", pair)
		}
		entries = append(entries, rls.Entry{Key: key, Value: value})
	}
	return entries, nil
}

// respond writes text or, if the request has ?format=json, v as JSON.
func respond(w http.ResponseWriter, r *http.Request, text string, v any) {
	if r.URL.Query().Get("format") != "json" {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Write([]byte(text))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	e.Encode(v)
}
