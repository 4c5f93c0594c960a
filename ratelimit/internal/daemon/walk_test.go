package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"gatehouse/ratelimit/internal/config"
	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/memory"
	"gatehouse/ratelimit/internal/doctest"
	"gatehouse/ratelimit/internal/limits/rulefile"
	"gatehouse/ratelimit/internal/rls"
	"gatehouse/ratelimit/internal/server"
	"gatehouse/ratelimit/internal/service"
	"gatehouse/ratelimit/internal/stats"
)

// TestDocs_walks carries out the tables that begin with the column Request, row by row, with the rules
// that stand above them, or of the domain that their head names, and the settings that it names.
func TestDocs_walks(t *testing.T) {
	t.Chdir("../..") // the pages'
	var rules doctest.Block
	byDomain := map[string]doctest.Block{}
	n := 0
	for _, b := range doctest.All(t) {
		if rules.Page != b.Page {
			rules = doctest.Block{}
		}
		if doctest.IsRules(b) {
			name, _, _ := strings.Cut(strings.TrimPrefix(b.Text, "domain: "), "\n")
			rules, byDomain[name] = b, b
		}
		if b.Lang != "table" || !strings.HasPrefix(b.Cells[0][0], "Request") {
			continue
		}
		n++
		rules := rules
		if m := regexp.MustCompile("domain `([a-z]+)`").FindStringSubmatch(b.Cells[0][0]); m != nil {
			rules = byDomain[m[1]]
		}
		if rules.Text == "" {
			t.Errorf("%s: no rules stand above this table, and its head names no domain that has any", b.Place())
			continue
		}
		for attempt := 0; ; attempt++ { // once more when it ran over a minute's end
			begun := time.Now().Unix() / 60
			wrong := walkTable(t, rules, b)
			if time.Now().Unix()/60 != begun && attempt < 3 {
				continue
			}
			for _, w := range wrong {
				t.Error(w)
			}
			break
		}
	}
	if n < 5 {
		t.Errorf("the pages have %d walks", n)
	}
}

// walkTable returns what is not true in a table.
func walkTable(t *testing.T, rules, b doctest.Block) (wrong []string) {
	w := newWalk(t, rules, b.Cells[0][0])
	for i, row := range b.Cells[2:] {
		for col, head := range b.Cells[0][1:] {
			var want string
			switch head {
			case "Answer":
				want = w.ask(row[0])
			case "Counters afterwards":
				want = w.counters()
			case "Metric key":
				want = "`" + w.metricKey(row[0]) + "`"
			default:
				continue
			}
			if got := row[col+1]; got != want {
				wrong = append(wrong, fmt.Sprintf("%s:%d: %s: %s\n  it says %s\n  true is %s", b.Page, b.Line+i+2,
					row[0], head, got, want))
			}
		}
	}
	return wrong
}

// walk is the daemon's service on a store of its own.
type walk struct {
	t       *testing.T
	service *service.Service
	store   *walkStore
}

// walkStore records the keys of its calls, and may be unavailable.
type walkStore struct {
	counter.Store
	keys []string
	away bool
}

func (s *walkStore) Add(ctx context.Context, r *counter.Request) error {
	if s.away {
		return counter.ErrUnavailable
	}
	for i := range r.Hits {
		if k := string(r.Hits[i].Key); !slices.Contains(s.keys, k) {
			s.keys = append(s.keys, k)
		}
	}
	return s.Store.Add(ctx, r)
}

func newWalk(t *testing.T, rules doctest.Block, head string) *walk {
	t.Helper()
	environ := []string{"BACKEND_TYPE=memory"}
	for _, m := range doctest.CodeSpan.FindAllStringSubmatch(head, -1) {
		if strings.Contains(m[1], "=") {
			environ = append(environ, m[1])
		}
	}
	c, report, err := config.Load(environ)
	if err != nil || len(report.Warnings) > 0 {
		t.Fatalf("%s: %v %v", rules.Place(), err, report.Warnings)
	}
	log := slog.New(slog.DiscardHandler)
	d := &daemon{config: c, report: report, log: log, health: server.NewHealth(),
		stats: stats.NewRegistry(stats.Options{Log: log})}
	d.makeService()
	if err := d.loader.Load(context.Background(),
		[]rulefile.File{{Name: "readme.yaml", Text: []byte(rules.Text)}}); err != nil {
		t.Fatalf("%s: %v", rules.Place(), err)
	}
	w := &walk{t: t, service: d.service, store: &walkStore{
		Store: memory.New(memory.Options{}), away: strings.Contains(head, "store away"),
	}}
	d.service.SetStore(w.store)
	return w
}

var (
	walkTimes      = regexp.MustCompile(`^(\d+) × `)
	walkDescriptor = regexp.MustCompile("`([^`]*)`(?: \\(([^)]*)\\))?")
	walkAddend     = regexp.MustCompile(`; hits_addend (\d+)$`)
	walkLimit      = regexp.MustCompile(`^limit (\d+) per ([A-Z]+)$`)
)

// ask sends what a cell describes and words the last answer.
func (w *walk) ask(cell string) string {
	w.t.Helper()
	times := 1
	if m := walkTimes.FindStringSubmatch(cell); m != nil {
		times, _ = strconv.Atoi(m[1])
	}
	w.store.keys = nil
	var c service.Call
	for range times {
		c = service.Call{}
		c.Request = w.request(cell)
		if err := w.service.Decide(w.t.Context(), &c, w.service.Now()); err != nil {
			return "error: " + err.Error()
		}
	}
	var words []string
	for _, s := range c.Response.Statuses {
		switch {
		case s.HasLimit:
			words = append(words, fmt.Sprintf("%s, %d of %d left", s.Code, s.Remaining, s.PerUnit))
		case s.Remaining > 0:
			words = append(words, s.Code.String()+", unlimited")
		default:
			words = append(words, s.Code.String()+", no limit")
		}
	}
	out := strings.Join(words, "; ")
	if len(words) > 1 || c.Response.Overall != c.Response.Statuses[0].Code {
		out += " → " + c.Response.Overall.String()
	}
	return out
}

func (w *walk) request(cell string) (r rls.Request) {
	w.t.Helper()
	r.Domain = w.service.Rules().Domains()[0].Name
	if m := walkAddend.FindStringSubmatch(cell); m != nil {
		n, _ := strconv.ParseUint(m[1], 10, 32)
		r.HitsAddend = uint32(n)
	}
	for _, m := range walkDescriptor.FindAllStringSubmatch(cell, -1) {
		entries, err := server.ParseDescriptor(m[1])
		if err != nil {
			w.t.Fatalf("%s: %v", cell, err)
		}
		d := rls.Descriptor{Entries: entries}
		for _, word := range strings.Split(m[2], ", ") {
			switch limit := walkLimit.FindStringSubmatch(word); {
			case word == "":
			case word == "is_negative_hits":
				d.Negative = true
			case strings.HasPrefix(word, "hits_addend "):
				d.HasHits = true
				d.Hits, _ = strconv.ParseUint(strings.TrimPrefix(word, "hits_addend "), 10, 64)
			case limit != nil:
				n, _ := strconv.ParseUint(limit[1], 10, 32)
				d.HasLimit, d.Limit.PerUnit = true, uint32(n)
				d.Limit.Unit = rls.Unit(pb.RateLimitResponse_RateLimit_Unit_value[limit[2]])
			default:
				w.t.Fatalf("%s: what is %q?", cell, word)
			}
		}
		r.Descriptors = append(r.Descriptors, d)
	}
	return r
}

// counters formats the counters that the last row queried in the store; … stands for the window's start.
func (w *walk) counters() string {
	var words []string
	for _, k := range w.store.keys {
		h := counter.Hit{Key: []byte(k)}
		if err := w.store.Peek(w.t.Context(), &h); err != nil {
			w.t.Fatal(err)
		}
		words = append(words, fmt.Sprintf("`%s…` %d", strings.TrimRight(k, "0123456789"), h.After))
	}
	if len(words) == 0 {
		return "none asked"
	}
	return strings.Join(words, ", ")
}

func (w *walk) metricKey(cell string) string {
	r := w.request(cell)
	return w.service.Rules().Explain(r.Domain, r.Descriptors[0].Entries).MetricKey
}
