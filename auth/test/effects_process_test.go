package test

import (
	"io"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/shared/await"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// Where the daemon listens, and the heap that the collector leaves alone.
func TestEffects_process(t *testing.T) {
	t.Parallel()
	database := testdb.Postgres(t)
	// started is where a daemon listens and the size of the heap at which its collector begins.
	started := func(host, floor string) (netip.AddrPort, float64) {
		t.Helper()
		d := start(t, environment(database, "AUTH_API_HOST="+host, "AUTH_HEAP_FLOOR_BYTES="+floor,
			"AUTH_METRICS_ENABLED=true",
			"AUTH_METRICS_EXPORTER=prometheus", "OTEL_EXPORTER_PULL_HOST=127.0.0.1", "OTEL_EXPORTER_PULL_PORT=0"))
		d.want(t, 200, "GET", "/health", "", "")
		at, err := netip.ParseAddrPort(strings.TrimPrefix(d.http, "http://"))
		must.Succeed(t, err)
		var metrics struct{ HTTP string }
		d.log.await(t, `"msg":"metrics"`, &metrics)
		resp, err := http.Get("http://" + metrics.HTTP + "/")
		must.Succeed(t, err)
		defer resp.Body.Close()
		page, err := io.ReadAll(resp.Body)
		must.Succeed(t, err)
		m := regexp.MustCompile(`(?m)^go_memory_gc_goal_bytes(?:\{.*\})? (\S+)$`).FindSubmatch(page)
		if m == nil {
			t.Fatalf("no goal of the collector in\n%s", page)
		}
		goal, err := strconv.ParseFloat(string(m[1]), 64)
		must.Succeed(t, err)
		return at, goal
	}
	one, small := started("127.0.0.1", "0")
	all, large := started("", "67108864")
	if one.Addr() != netip.MustParseAddr("127.0.0.1") || !all.Addr().IsUnspecified() {
		t.Errorf("AUTH_API_HOST=127.0.0.1: at %s; empty: at %s", one, all)
	}
	if small >= 32<<20 || large < 32<<20 {
		t.Errorf("AUTH_HEAP_FLOOR_BYTES=0: the collector begins at %.0f bytes; with 64 MiB at %.0f", small, large)
	}
}

// pooled is a daemon that PostgreSQL knows by name, and the connections that it had when all were in use.
type pooled struct {
	*instance
	name string
	had  []int
}

// left are those that it still has.
func (d *pooled) left(t *testing.T, database string) int {
	t.Helper()
	n := 0
	for _, pid := range rows[int](t, database, `select pid from pg_stat_activity where application_name = $1`, d.name) {
		if slices.Contains(d.had, pid) {
			n++
		}
	}
	return n
}

// When connections are closed that rest, and what has expired is removed.
func TestEffects_database(t *testing.T) {
	t.Parallel()
	const expired = `insert into limits (key, tokens, at, full_at) values ('\x01', 0, now() - interval '2 days', now() - interval '1 day')`
	const kept = `select count(*)::int from limits where key = '\x01'`
	swept, database := testdb.Postgres(t), testdb.Postgres(t)
	start(t, environment(swept, "AUTH_DB_CLEANUP_INTERVAL=50ms"))
	must.Succeed(t, execute(swept, expired))

	// With one core the pool keeps four connections at rest; a lock brings it to six.
	const size, atRest = 6, 4
	f := func(name, idle, life, look string) *pooled {
		t.Helper()
		separator := "?"
		if strings.Contains(database, "?") {
			separator = "&"
		}
		return &pooled{name: name,
			instance: start(t, environment(database+separator+"application_name="+name, "GOMAXPROCS=1",
				"AUTH_DB_MAX_POOL_SIZE="+strconv.Itoa(size),
				"AUTH_DB_CONN_MAX_IDLE_TIME="+idle, "AUTH_DB_CONN_MAX_LIFETIME="+life,
				"AUTH_DB_HEALTH_CHECK_PERIOD="+look,
				"AUTH_DB_CLEANUP_ENABLED=false", "AUTH_DB_CLEANUP_INTERVAL=50ms", "AUTH_API_MAX_REQUEST_DURATION=2m"))}
	}
	long := f("long", "1h", "1h", "50ms")
	rested := f("rested", "100ms", "1h", "50ms")
	unseen := f("unseen", "100ms", "1h", "1h")
	old := f("old", "1h", "100ms", "50ms")
	daemons := []*pooled{long, rested, unseen, old}
	must.Succeed(t, execute(database, expired))

	conn := testdb.Connect(t, database)
	must.Succeed(t, must.ErrOf(conn.Exec(t.Context(), `begin; lock table users in access exclusive mode`)))
	var wg sync.WaitGroup
	for _, d := range daemons {
		for i := range size {
			wg.Go(func() {
				client := http.Client{Timeout: 2 * time.Minute}
				resp, err := client.Post(d.http+"/token?grant_type=password", "application/json",
					strings.NewReader(credentials("nobody"+strconv.Itoa(i)+"@example.org", horse)))
				if err != nil {
					t.Error(err)
					return
				}
				resp.Body.Close()
			})
		}
	}
	for _, d := range daemons {
		await.True(t, d.name+" has all its connections in use", func() bool {
			d.had = rows[int](t, database,
				`select pid from pg_stat_activity where application_name = $1 and wait_event_type = 'Lock'`, d.name)
			return len(d.had) == size
		})
	}
	must.Succeed(t, must.ErrOf(conn.Exec(t.Context(), `commit`)))
	wg.Wait()
	await.True(t, "AUTH_DB_CONN_MAX_IDLE_TIME=100ms closes what rests", func() bool {
		return rested.left(t, database) <= atRest // a busy machine may have had some of them replaced
	})
	await.True(t, "AUTH_DB_CONN_MAX_LIFETIME=100ms closes what is old", func() bool {
		return old.left(t, database) < atRest
	})
	if n := long.left(t, database); n != size {
		t.Errorf("an hour's rest and life: %d connections of %d are left", n, size)
	}
	if n := unseen.left(t, database); n != size {
		t.Errorf("AUTH_DB_HEALTH_CHECK_PERIOD=1h: %d connections of %d are left", n, size)
	}

	await.True(t, "what has expired is removed", func() bool { return rows[int](t, swept, kept)[0] == 0 })
	if rows[int](t, database, kept)[0] == 0 {
		t.Error("AUTH_DB_CLEANUP_ENABLED=false: what has expired was removed")
	}
}
