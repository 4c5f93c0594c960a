package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/rls"
	"gatehouse/ratelimit/internal/server"
	"gatehouse/ratelimit/internal/service"
	"gatehouse/ratelimit/internal/stats"
)

// TestDocs_walks carries out the tables that begin with the column Request, row by row, with the rules
// that stand above them, or of the domain that their head names, and the settings that it names.
func TestDocs_walks(t *testing.T) {
	var rules block
	byDomain := map[string]block{}
	n := 0
	for _, b := range allBlocks(t) {
		if rules.page != b.page {
			rules = block{}
		}
		if isRules(b) {
			name, _, _ := strings.Cut(strings.TrimPrefix(b.text, "domain: "), "\n")
			rules, byDomain[name] = b, b
		}
		if b.lang != "table" || !strings.HasPrefix(b.cells[0][0], "Request") {
			continue
		}
		n++
		rules := rules
		if m := regexp.MustCompile("domain `([a-z]+)`").FindStringSubmatch(b.cells[0][0]); m != nil {
			rules = byDomain[m[1]]
		}
		if rules.text == "" {
			t.Errorf("%s: no rules stand above this table, and its head names no domain that has any", b.place())
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
func walkTable(t *testing.T, rules, b block) (wrong []string) {
	w := newWalk(t, rules, b.cells[0][0])
	for i, row := range b.cells[2:] {
		for col, head := range b.cells[0][1:] {
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
				wrong = append(wrong, fmt.Sprintf("%s:%d: %s: %s\n  it says %s\n  true is %s", b.page, b.line+i+2, row[0], head, got, want))
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

// walkStore notes the keys that it was asked about, and may be away.
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

func newWalk(t *testing.T, rules block, head string) *walk {
	t.Helper()
	environ := []string{"BACKEND_TYPE=memory"}
	for _, m := range codeSpan.FindAllStringSubmatch(head, -1) {
		if strings.Contains(m[1], "=") {
			environ = append(environ, m[1])
		}
	}
	c, report, err := loadConfig(environ)
	if err != nil || len(report.Warnings) > 0 {
		t.Fatalf("%s: %v %v", rules.place(), err, report.Warnings)
	}
	log := slog.New(slog.DiscardHandler)
	d := &daemon{config: c, log: log, health: server.NewHealth(), stats: stats.NewRegistry(stats.Options{Log: log})}
	d.makeService()
	if err := d.loader.Load(context.Background(), []limits.File{{Name: "readme.yaml", Text: []byte(rules.text)}}); err != nil {
		t.Fatalf("%s: %v", rules.place(), err)
	}
	w := &walk{t: t, service: d.service, store: &walkStore{
		Store: counter.NewMemory(counter.MemoryOptions{}), away: strings.Contains(head, "store away"),
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
		if err := w.service.Decide(w.t.Context(), &c); err != nil {
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
				for u := rls.Second; u <= rls.Week; u++ {
					if u.String() == limit[2] {
						d.Limit.Unit = u
					}
				}
			default:
				w.t.Fatalf("%s: what is %q?", cell, word)
			}
		}
		r.Descriptors = append(r.Descriptors, d)
	}
	return r
}

// counters words the counters that the last row asked the store about; … stands for the window's start.
func (w *walk) counters() string {
	var words []string
	for _, k := range w.store.keys {
		n, err := w.store.Peek(w.t.Context(), []byte(k), 0)
		if err != nil {
			w.t.Fatal(err)
		}
		words = append(words, fmt.Sprintf("`%s…` %d", strings.TrimRight(k, "0123456789"), n))
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

// TestREADME_transcripts types the commands of the README's first examples, against a real daemon with
// those rules. What changes from run to run (seconds, window starts, addresses) is left out.
func TestREADME_transcripts(t *testing.T) {
	dir, root := t.TempDir(), ""
	var shells []block
	for _, b := range blocksOf(t, "README.md") {
		switch {
		case b.lang == "yaml" && b.file != "":
			// What a reader saves in the repository must not change it: a file that git sees makes the version
			// of the next build dirty, and one at the top fails a test.
			if !strings.HasPrefix(b.file, ".run/") {
				t.Errorf("%s: %s does not lie below .run/", b.place(), b.file)
			}
			path := filepath.Join(dir, b.file)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(b.text), 0o644); err != nil {
				t.Fatal(err)
			}
		case b.lang == "console":
			shells = append(shells, b)
		case b.lang == "sh":
			if m := regexp.MustCompile(`RUNTIME_ROOT=\$PWD(\S*) .*bin/ratelimit\n`).FindStringSubmatch(b.text); m != nil {
				root = filepath.Join(dir, m[1])
			}
		}
	}
	if len(shells) == 0 {
		t.Error("README.md has no ```console block")
	}
	if root == "" {
		t.Fatal("README.md says nowhere how to run the daemon: RUNTIME_ROOT=$PWD… bin/ratelimit")
	}
	t.Chdir(dir)
	for attempt := 0; ; attempt++ {
		begun := time.Now().Unix() / 60
		p := start(t, "", map[string]string{"RUNTIME_ROOT": root, "RUNTIME_APPDIRECTORY": "config"})
		var wrong []string
		for _, b := range shells {
			wrong = append(wrong, typeBlock(t, p, b)...)
		}
		if time.Now().Unix()/60 != begun && attempt < 3 {
			continue
		}
		for _, w := range wrong {
			t.Error(w)
		}
		return
	}
}

func typeBlock(t *testing.T, p *process, b block) (wrong []string) {
	t.Helper()
	addresses := strings.NewReplacer("localhost:8081", p.grpc, "localhost:8080", p.http, "localhost:6070", p.debug)
	back := strings.NewReplacer(p.grpc, "localhost:8081", p.http, "localhost:8080", p.debug, "localhost:6070")
	for command := range strings.SplitSeq(strings.TrimPrefix(b.text, "$ "), "\n$ ") {
		line, want, _ := strings.Cut(strings.TrimSuffix(command, "\n"), "\n")
		got := back.Replace(typeLine(t, addresses.Replace(line)))
		if steady(got) != steady(want) {
			wrong = append(wrong, fmt.Sprintf("%s: $ %s\n it says:\n%s\n true is:\n%s", b.place(), line, want, got))
		}
	}
	return wrong
}

// typeLine carries out bin/ratelimit … and curl … without a shell.
func typeLine(t *testing.T, line string) string {
	t.Helper()
	if args, ok := strings.CutPrefix(line, "bin/ratelimit "); ok {
		var out bytes.Buffer
		args, echo := strings.CutSuffix(args, "; echo $?")
		status := run(t.Context(), append([]string{"ratelimit"}, strings.Fields(args)...), nil, &out, &out)
		if echo {
			fmt.Fprintln(&out, status)
		}
		return out.String()
	}
	m := regexp.MustCompile(`^curl (?:-s )?'?([^' ]+)'?(?: -d '([^']*)')?$`).FindStringSubmatch(line)
	if m == nil {
		t.Fatalf("README.md: cannot type %q", line)
	}
	if !strings.Contains(m[1], "://") {
		m[1] = "http://" + m[1]
	}
	method := http.MethodGet
	if m[2] != "" {
		method = http.MethodPost
	}
	request, err := http.NewRequestWithContext(t.Context(), method, m[1], strings.NewReader(m[2]))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

var volatile = regexp.MustCompile(`(seconds:|durationUntilReset": ?"|ends in |_)\d+`)

// steady leaves out what differs from run to run: times, and spaces that protobuf puts in at random.
func steady(s string) string {
	s = volatile.ReplaceAllString(s, "${1}N")
	s = regexp.MustCompile(`([,:]) *`).ReplaceAllString(s, "$1")
	return strings.Join(strings.Fields(s), " ")
}
