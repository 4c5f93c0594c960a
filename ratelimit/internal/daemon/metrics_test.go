package daemon

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"gatehouse/ratelimit/internal/config"
	"gatehouse/ratelimit/internal/counter/redis"
	"gatehouse/ratelimit/internal/doctest"
	"gatehouse/ratelimit/internal/server"
	"gatehouse/ratelimit/internal/stats"
	"gatehouse/shared/certs/certtest"
	"gatehouse/shared/must"
)

// TestDocs_metrics: every name of the registry is listed, and every name listed is there.
func TestDocs_metrics(t *testing.T) {
	t.Chdir("../..") // the pages'
	cert, key := certtest.NewCA(t, "ca", time.Hour).Issue("localhost").Write(t, t.TempDir())
	c, report, err := config.Load([]string{"BACKEND_TYPE=memory", "LOCAL_CACHE_SIZE_IN_BYTES=1",
		"GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT=" + cert, "GRPC_SERVER_TLS_KEY=" + key})
	must.Succeed(t, err)
	log := slog.New(slog.DiscardHandler)
	d := &daemon{config: c, report: report, log: log, health: server.NewHealth(),
		stats: stats.NewRegistry(stats.Options{Log: log})}
	d.config.Tracing.Enabled = true
	d.config.Stats.Pull = true
	d.makePage()
	stopTracing, err := d.startTracing(t.Context())
	must.Succeed(t, err)
	defer stopTracing()
	d.makeService()
	closeCerts, err := d.openCerts()
	must.Succeed(t, err)
	closeCerts()
	must.Succeed(t, must.ErrOf(d.openStore(t.Context())))
	server.NewHTTP(server.HTTPOptions{Service: d.service, Health: d.health, Stats: d.stats, Log: log})
	server.NewFront(server.GRPCOptions{Native: true, Service: d.service, Health: d.health, Stats: d.stats, Log: log})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d.config.XDS.TLS, d.config.XDS.Cert, d.config.XDS.Key = true, cert, key
	for _, kind := range []string{"FILE", config.TypeXDS} {
		d.config.Rules.Type = kind
		stop, _, err := d.watchRules(ctx)
		must.Succeed(t, err)
		stop()
	}
	there := map[string]bool{}
	d.config.MCache.Store.Nodes = []string{"localhost:1"} // memcached is not connected to at start
	d.config.MCache.TLS, d.config.MCache.Files.Cert, d.config.MCache.Files.Key = true, cert, key
	nodes, err := d.openMemcache(t.Context())
	must.Succeed(t, err)
	defer nodes.Close()
	d.poolStats("redis_pool", noStore{})
	d.poolStats("redis_per_second_pool", noStore{})
	d.stats.Each(func(name string, _ stats.Kind, _ int64) { there[name] = true })

	listed := map[string]bool{}
	for _, b := range doctest.Blocks(t, "docs/statistics.md") {
		if b.Lang != "table" || b.Cells[0][0] != "Name" || b.Cells[0][1] != "Meaning" {
			continue
		}
		for _, row := range b.Cells[2:] {
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
		if !there[name] && !strings.Contains(name, "<") && !strings.Contains(name, "*") &&
			!strings.HasSuffix(name, "response_time") {
			t.Errorf("docs/statistics.md lists %s, which is not there", name)
		}
	}
}

// noStore has the metrics of a store, all 0.
type noStore struct{ redis.Store }

func (noStore) ActiveConns() int64 { return 0 }
func (noStore) TotalConns() int64  { return 0 }
func (noStore) LocalCloses() int64 { return 0 }
func (noStore) Open() bool         { return false }
func (noStore) Flapping() bool     { return false }

// listNames reads the names of a cell: `a.b`, `.c` for a sibling of the last one, or `a.` and then
// words that continue it.
func listNames(listed map[string]bool, cell string) {
	family, last := "", ""
	for _, m := range doctest.CodeSpan.FindAllStringSubmatch(cell, -1) {
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
		if !strings.HasPrefix(name, "ratelimit") && !strings.HasPrefix(name, "runtime.") &&
			!strings.HasPrefix(name, "certs.") {
			name = "ratelimit." + name
		}
		listed[name] = true
	}
}
