package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	httprl "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/server"
	"gatehouse/ratelimit/internal/stats"
	"gatehouse/shared/certs/certtest"
)

// This file and readme_walk_test.go hold README.md and the pages in docs/ to what the program does: their rules
// load, their tables are walked through by the service, their commands are typed. A difference is reported as the
// row or line that would be true.

// block is a fenced block of a page, or a table.
type block struct {
	page  string
	line  int
	lang  string // of a fence: yaml, sh, …; table for a table
	file  string // what stands behind the language: the name that the text gives the file
	text  string
	cells [][]string // of a table, with its head
}

func (b block) place() string { return fmt.Sprintf("%s:%d", b.page, b.line) }

// document is the text of README.md or of a page in docs/.
func document(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// documents are the paths of README.md and, after it, of the pages in docs/.
func documents(t *testing.T) []string {
	t.Helper()
	pages, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	return append([]string{"README.md"}, pages...)
}

// TestDocs_length keeps each page short enough to be read at one sitting. The tables of settings are as long as they
// have to be.
func TestDocs_length(t *testing.T) {
	for _, path := range documents(t) {
		most := 300
		switch path {
		case "README.md":
			most = 250
		case "docs/settings.md":
			continue
		}
		if n := strings.Count(document(t, path), "\n"); n > most {
			t.Errorf("%s has %d lines, want at most %d", path, n, most)
		}
	}
}

// allBlocks are the blocks of all documents, in order.
func allBlocks(t *testing.T) (all []block) {
	t.Helper()
	for _, path := range documents(t) {
		all = append(all, blocksOf(t, path)...)
	}
	return all
}

// blocksOf cuts a page into its fenced blocks and tables, in order.
func blocksOf(t *testing.T, page string) (all []block) {
	t.Helper()
	lines := strings.Split(document(t, page), "\n")
	for i := 0; i < len(lines); i++ {
		b := block{page: page, line: i + 1}
		switch info, fence := strings.CutPrefix(lines[i], "```"); {
		case fence:
			b.lang, b.file, _ = strings.Cut(info, " ")
			for i++; i < len(lines) && lines[i] != "```"; i++ {
				b.text += lines[i] + "\n"
			}
		case strings.HasPrefix(lines[i], "|"):
			b.lang = "table"
			for ; i < len(lines) && strings.HasPrefix(lines[i], "|"); i++ {
				b.cells = append(b.cells, tableCells(lines[i]))
			}
		default:
			continue
		}
		all = append(all, b)
	}
	return all
}

// tableCells splits a row at the bars that no backslash escapes.
func tableCells(row string) []string {
	row = strings.ReplaceAll(strings.Trim(row, "|"), `\|`, "\x00")
	cells := strings.Split(row, "|")
	for i := range cells {
		cells[i] = strings.TrimSpace(strings.ReplaceAll(cells[i], "\x00", "|"))
	}
	return cells
}

var codeSpan = regexp.MustCompile("`([^`]*)`")

func isRules(b block) bool { return b.lang == "yaml" && strings.HasPrefix(b.text, "domain:") }

func loadRules(b block) (*limits.Rules, error) {
	rules, warnings, err := limits.Load(context.Background(), []limits.File{{Name: "readme.yaml", Text: []byte(b.text)}}, limits.Options{NearRatio: 0.8})
	if err == nil && len(warnings) > 0 {
		err = fmt.Errorf("warnings: %v", warnings)
	}
	return rules, err
}

// TestDocs_rules loads every example, each alone, and reads the YAML that is for other programs.
func TestDocs_rules(t *testing.T) {
	n := 0
	for _, b := range allBlocks(t) {
		switch {
		case isRules(b):
			n++
			if _, err := loadRules(b); err != nil {
				t.Errorf("%s: %v", b.place(), err)
			}
		case b.lang == "yaml":
			for doc := range strings.SplitSeq(b.text, "\n---\n") {
				var v map[string]any
				if err := yaml.Unmarshal([]byte(doc), &v); err != nil {
					t.Errorf("%s: %v", b.place(), err)
				}
				if filter, ok := v["typed_config"].(map[string]any); ok {
					checkEnvoyFilter(t, b.place(), filter)
				}
			}
		}
	}
	if n < 5 {
		t.Errorf("the pages have %d examples of rules", n)
	}
}

func checkEnvoyFilter(t *testing.T, place string, filter map[string]any) {
	delete(filter, "@type")
	text, err := json.Marshal(filter)
	if err != nil {
		t.Fatal(err)
	}
	var m httprl.RateLimit
	if err := protojson.Unmarshal(text, &m); err != nil {
		t.Errorf("%s: %v", place, err)
	} else if err := m.ValidateAll(); err != nil {
		t.Errorf("%s: %v", place, err)
	}
}

// TestDocs_fields: the table of fields lists what each level of a rule file takes.
func TestDocs_fields(t *testing.T) {
	const wrong = "domain: d\nx: 1\ndescriptors: [{key: k, x: 1, rate_limit: {x: 1}}]"
	_, err := loadRules(block{text: wrong})
	want := map[string]bool{}
	for _, m := range regexp.MustCompile(`allowed are ([^;\n]*)`).FindAllStringSubmatch(fmt.Sprint(err), -1) {
		for name := range strings.FieldsSeq(strings.NewReplacer(",", " ", " or ", " ").Replace(m[1])) {
			want[name] = true
		}
	}
	got := map[string]bool{}
	for _, b := range blocksOf(t, "docs/rules.md") {
		if b.lang == "table" && b.cells[0][0] == "Field" {
			for _, row := range b.cells[2:] {
				for _, m := range codeSpan.FindAllStringSubmatch(row[0], -1) {
					got[m[1][strings.LastIndex(m[1], ".")+1:]] = true
				}
			}
		}
	}
	if d := cmp.Diff(want, got); d != "" || len(want) < 10 {
		t.Errorf("%v%s", err, d)
	}
}

// TestDocs_refusals asks what the table of errors lists and can be asked of a healthy daemon.
func TestDocs_refusals(t *testing.T) {
	text := document(t, "docs/wire.md")
	p := start(t, "[{key: k, @5/m}]", nil)
	f := func(body string) {
		t.Helper()
		answer, err := http.Post("http://"+p.http+"/json", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		var said struct{ Code, Message string }
		if err := json.NewDecoder(answer.Body).Decode(&said); err != nil {
			t.Fatal(err)
		}
		if row := fmt.Sprintf("| %s | %d | `%s`", said.Code, answer.StatusCode, said.Message); !strings.Contains(text, row) {
			t.Errorf("docs/wire.md lacks the row\n%s", row)
		}
	}
	f(`{}`)
	f(`{"domain":"d"}`)
	f(`{"domain":"d","descriptors":[` + strings.Repeat("{},", 256) + `{}]}`)
	f(`{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}],"limit":{"requestsPerUnit":1}}]}`)
	f(`{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}],"hitsAddend":"9223372036854775808"}]}`)
	p = launch(t, "", map[string]string{"FORCE_START_WITHOUT_INITIAL_CONFIG": "true", "RUNTIME_APPDIRECTORY": "nothing"})
	var ready struct {
		HTTP string `json:"http"`
	}
	p.log.await(t, `"ready"`, &ready)
	p.http = ready.HTTP
	f(`{"domain":"d","descriptors":[{}]}`)
}

// TestDocs_metrics: every name of the registry is listed, and every name listed is there.
func TestDocs_metrics(t *testing.T) {
	cert, key := certtest.NewCA(t, "ca", time.Hour).Issue("localhost").Write(t, t.TempDir())
	c, _, err := loadConfig([]string{"BACKEND_TYPE=memory", "LOCAL_CACHE_SIZE_IN_BYTES=1",
		"GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT=" + cert, "GRPC_SERVER_TLS_KEY=" + key})
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	d := &daemon{config: c, log: log, health: server.NewHealth(), stats: stats.NewRegistry(stats.Options{Log: log})}
	d.config.Tracing.Enabled = true
	d.config.Stats.Pull = true
	d.makePage()
	stopTracing, err := d.startTracing(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer stopTracing()
	d.makeService()
	closeCerts, err := d.openCerts()
	if err != nil {
		t.Fatal(err)
	}
	closeCerts()
	if _, err := d.openStore(t.Context()); err != nil {
		t.Fatal(err)
	}
	server.NewHTTP(server.HTTPOptions{Service: d.service, Health: d.health, Stats: d.stats, Log: log})
	server.NewGRPC(server.GRPCOptions{Service: d.service, Health: d.health, Stats: d.stats, Log: log})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d.config.XDS.TLS, d.config.XDS.Cert, d.config.XDS.Key = true, cert, key
	for _, kind := range []string{"FILE", typeXDS} {
		d.config.Rules.Type = kind
		stop, _, err := d.watchRules(ctx)
		if err != nil {
			t.Fatal(err)
		}
		stop()
	}
	there := map[string]bool{}
	d.config.MCache.HostPort = []string{"localhost:1"} // memcached is not connected to at start
	d.config.MCache.TLS, d.config.MCache.Files.Cert, d.config.MCache.Files.Key = true, cert, key
	nodes, err := d.openMemcache(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer nodes.Close()
	d.poolStats("redis_pool", noStore{})
	d.poolStats("redis_per_second_pool", noStore{})
	d.stats.Each(func(name string, _ stats.Kind, _ int64) { there[name] = true })

	listed := map[string]bool{}
	for _, b := range blocksOf(t, "docs/statistics.md") {
		if b.lang != "table" || b.cells[0][0] != "Name" || b.cells[0][1] != "Meaning" {
			continue
		}
		for _, row := range b.cells[2:] {
			for _, cell := range row[:2] {
				listNames(listed, cell)
			}
		}
	}
	for name := range there {
		family := strings.HasPrefix(name, "ratelimit.go.") || strings.HasPrefix(name, "ratelimit.service.rate_limit.")
		if !family && !listed[name] {
			t.Errorf("docs/statistics.md does not list %s", name)
		}
	}
	for name := range listed {
		if !there[name] && !strings.Contains(name, "<") && !strings.Contains(name, "*") && !strings.HasSuffix(name, "response_time") {
			t.Errorf("docs/statistics.md lists %s, which is not there", name)
		}
	}
}

// noStore has the figures of a store, all 0.
type noStore struct{ counter.KV }

func (noStore) ActiveConns() int64 { return 0 }
func (noStore) TotalConns() int64  { return 0 }
func (noStore) LocalCloses() int64 { return 0 }
func (noStore) Open() bool         { return false }

// listNames reads the names of a cell: `a.b`, `.c` for a sibling of the last one, or `a.` and then
// words that continue it.
func listNames(listed map[string]bool, cell string) {
	family, last := "", ""
	for _, m := range codeSpan.FindAllStringSubmatch(cell, -1) {
		name := m[1]
		switch {
		case strings.HasPrefix(name, "."):
			name = last[:strings.LastIndex(last, ".")] + name
		case strings.HasSuffix(name, "."):
			family = name
			continue
		case !strings.Contains(name, ".") && family != "":
			name = family + name
		case !strings.Contains(name, "."):
			if name == "reserved_tag" {
				listed[name] = true
			}
			continue // a setting or a value
		default:
			family = ""
		}
		last = name
		if !strings.HasPrefix(name, "ratelimit") && !strings.HasPrefix(name, "runtime.") && !strings.HasPrefix(name, "certs.") {
			name = "ratelimit." + name
		}
		listed[name] = true
	}
}

// TestDocs_links: what a link to a Go file names in code is declared in that file. Where links lead otherwise is
// followed by TestLinks of package shared.
func TestDocs_links(t *testing.T) {
	n := 0
	for _, path := range documents(t) {
		links := regexp.MustCompile("\\[`(?:\\w+\\.)?(\\w+)`\\]\\(([^)]+\\.go)\\)").FindAllStringSubmatch(document(t, path), -1)
		n += len(links)
		for _, m := range links {
			file, err := os.ReadFile(filepath.Join(filepath.Dir(path), m[2]))
			if err != nil {
				t.Error(err)
			} else if !regexp.MustCompile(`(?m)^(func (\([^)]*\) )?|type )` + m[1] + `\b`).Match(file) {
				t.Errorf("%s: %s declares no %s", path, m[2], m[1])
			}
		}
	}
	if n < 15 {
		t.Errorf("the pages have %d links into the code", n)
	}
}

// TestDocs_dependencies compares the table with deps.txt.
func TestDocs_dependencies(t *testing.T) {
	deps, err := os.ReadFile("deps.txt")
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for _, b := range blocksOf(t, "docs/design.md") {
		if b.lang == "table" && b.cells[0][0] == "Module" {
			for _, row := range b.cells[2:] {
				for _, m := range codeSpan.FindAllStringSubmatch(row[0], -1) {
					listed = append(listed, m[1])
				}
			}
		}
	}
	slices.Sort(listed)
	if want := strings.Fields(string(deps)); !slices.Equal(listed, want) {
		t.Errorf("docs/design.md lists %q, deps.txt %q", listed, want)
	}
}
