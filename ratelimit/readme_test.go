package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
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

// This file and readme_walk_test.go hold README.md to what the program does: its rules load, its tables
// are walked through by the service, its commands are typed. A difference is reported as the row or line
// that would be true.

// block is a fenced block of README.md, or a table.
type block struct {
	line  int
	lang  string // of a fence: yaml, sh, …; table for a table
	file  string // what stands behind the language: the name that the text gives the file
	text  string
	cells [][]string // of a table, with its head
}

// readmeBlocks cuts README.md into its fenced blocks and tables, in order.
func readmeBlocks(t *testing.T) (all []block) {
	t.Helper()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	for i := 0; i < len(lines); i++ {
		b := block{line: i + 1}
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

// TestREADME_rules loads every example, each alone, and reads the YAML that is for other programs.
func TestREADME_rules(t *testing.T) {
	n := 0
	for _, b := range readmeBlocks(t) {
		switch {
		case isRules(b):
			n++
			if _, err := loadRules(b); err != nil {
				t.Errorf("README.md:%d: %v", b.line, err)
			}
		case b.lang == "yaml":
			for doc := range strings.SplitSeq(b.text, "\n---\n") {
				var v map[string]any
				if err := yaml.Unmarshal([]byte(doc), &v); err != nil {
					t.Errorf("README.md:%d: %v", b.line, err)
				}
				if filter, ok := v["typed_config"].(map[string]any); ok {
					checkEnvoyFilter(t, b.line, filter)
				}
			}
		}
	}
	if n < 5 {
		t.Errorf("README.md has %d examples of rules", n)
	}
}

func checkEnvoyFilter(t *testing.T, line int, filter map[string]any) {
	delete(filter, "@type")
	text, err := json.Marshal(filter)
	if err != nil {
		t.Fatal(err)
	}
	var m httprl.RateLimit
	if err := protojson.Unmarshal(text, &m); err != nil {
		t.Errorf("README.md:%d: %v", line, err)
	} else if err := m.ValidateAll(); err != nil {
		t.Errorf("README.md:%d: %v", line, err)
	}
}

// TestREADME_fields: the table of fields lists what each level of a rule file takes.
func TestREADME_fields(t *testing.T) {
	const wrong = "domain: d\nx: 1\ndescriptors: [{key: k, x: 1, rate_limit: {x: 1}}]"
	_, err := loadRules(block{text: wrong})
	want := map[string]bool{}
	for _, m := range regexp.MustCompile(`allowed are ([^;\n]*)`).FindAllStringSubmatch(fmt.Sprint(err), -1) {
		for name := range strings.FieldsSeq(strings.NewReplacer(",", " ", " or ", " ").Replace(m[1])) {
			want[name] = true
		}
	}
	got := map[string]bool{}
	for _, b := range readmeBlocks(t) {
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

// TestREADME_refusals asks what the table of errors lists and can be asked of a healthy daemon.
func TestREADME_refusals(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
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
		if row := fmt.Sprintf("| %s | %d | `%s`", said.Code, answer.StatusCode, said.Message); !strings.Contains(string(text), row) {
			t.Errorf("README.md lacks the row\n%s", row)
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

// TestREADME_metrics: every name of the registry is listed, and every name listed is there.
func TestREADME_metrics(t *testing.T) {
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
	for _, b := range readmeBlocks(t) {
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
			t.Errorf("README.md does not list %s", name)
		}
	}
	for name := range listed {
		if !there[name] && !strings.Contains(name, "<") && !strings.Contains(name, "*") && !strings.HasSuffix(name, "response_time") {
			t.Errorf("README.md lists %s, which is not there", name)
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

// TestREADME_links: what a link to a Go file names in code is declared in that file.
func TestREADME_links(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	links := regexp.MustCompile("\\[`(?:\\w+\\.)?(\\w+)`\\]\\(([^)]+\\.go)\\)").FindAllStringSubmatch(string(text), -1)
	if len(links) < 15 {
		t.Errorf("README.md has %d links into the code", len(links))
	}
	for _, m := range links {
		file, err := os.ReadFile(m[2])
		if err != nil {
			t.Error(err)
		} else if !regexp.MustCompile(`(?m)^(func (\([^)]*\) )?|type )` + m[1] + `\b`).Match(file) {
			t.Errorf("README.md: %s declares no %s", m[2], m[1])
		}
	}
	anchors := map[string]int{} // how often; the second of a name is name-1
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(string(text), -1) {
		name := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
		name = strings.ReplaceAll(name, " ", "-")
		if n := anchors[name]; n > 0 {
			anchors[fmt.Sprint(name, "-", n)]++
		}
		anchors[name]++
	}
	for _, m := range regexp.MustCompile(`\]\(#([^)]+)\)`).FindAllStringSubmatch(string(text), -1) {
		if anchors[m[1]] == 0 {
			t.Errorf("README.md: no heading gives #%s", m[1])
		}
	}
}

// TestREADME_dependencies compares the table with deps.txt.
func TestREADME_dependencies(t *testing.T) {
	deps, err := os.ReadFile("deps.txt")
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for _, b := range readmeBlocks(t) {
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
		t.Errorf("README.md lists %q, deps.txt %q", listed, want)
	}
}
