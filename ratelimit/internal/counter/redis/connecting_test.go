package redis

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/countertest"
	"gatehouse/shared/await"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/subprocess"
	"gatehouse/shared/testdb"
)

// Hits are refused at once while the server is absent, and counted when it has come.
func TestConnectKV(t *testing.T) {
	t.Parallel()
	server := testdb.Private(t, localserver.RedisOptions{})
	server.Kill()
	var log subprocess.Lines
	kv, err := Connect(Options{
		Settings: Settings{URL: server.Addr()},
		Start:    StartSettings{Initial: time.Millisecond, Max: 20 * time.Millisecond, MaxElapsed: time.Nanosecond},
		Log:      slog.New(slog.NewTextHandler(&log, nil)),
	})
	must.Succeed(t, err)
	req := counter.Request{Now: now(), Hits: []counter.Hit{h("key", 1)}}
	if err := kv.Add(t.Context(), &req); !errors.Is(err, counter.ErrOpen) {
		t.Errorf("Add without a server: %v, want %v", err, counter.ErrOpen)
	}
	if _, err := countertest.Peek(t.Context(), kv, "key"); !errors.Is(err, counter.ErrOpen) {
		t.Errorf("Peek without a server: %v, want %v", err, counter.ErrOpen)
	}
	if !kv.Open() || kv.ActiveConns() != 0 || kv.TotalConns() != 0 || kv.LocalCloses() != 0 {
		t.Errorf("without a server: open %t, connections %d", kv.Open(), kv.ActiveConns())
	}
	must.Succeed(t, log.Await("does not answer yet", nil, nil, 10*time.Second))
	must.Succeed(t, server.Restart(t.Context()))
	await.True(t, "a connection", func() bool { return !kv.Open() })
	if err := kv.Add(t.Context(), &req); err != nil || req.Hits[0].After != 1 {
		t.Errorf("total %d, %v", req.Hits[0].After, err)
	}
	if n, err := countertest.Peek(t.Context(), kv, "key"); n != 1 || err != nil || kv.ActiveConns() == 0 {
		t.Errorf("Peek %d, %v; %d connections", n, err, kv.ActiveConns())
	}
	kv.Close()
	if text := log.String(); !strings.Contains(text, "the key-value store answers") {
		t.Errorf("log: %s", text)
	}
}

// What no wait can mend is an error at once, and Close ends a store that never came.
func TestConnectKV_ends(t *testing.T) {
	t.Parallel()
	for _, o := range []Options{{Settings: Settings{URL: "nowhere"}}, {Settings: Settings{URL: "rediss://h:1"}},
		{Settings: Settings{URL: "m", Type: Sentinel}}} {
		if kv, err := Connect(o); err == nil {
			kv.Close()
			t.Errorf("%s: no error", o.Settings.URL)
		}
	}
	for kind, url := range map[string]string{Single: "127.0.0.1:1", Sentinel: "m,127.0.0.1:1",
		InCluster: "127.0.0.1:1"} {
		kv, err := Connect(Options{Settings: Settings{URL: url, Type: kind}, Start: StartSettings{Initial: time.Hour}})
		must.Succeed(t, err)
		kv.Close()
	}
	var log subprocess.Lines
	new(connecting).connect(t.Context(), Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	if text := log.String(); !strings.Contains(text, "KVSTORE_URL: missing") {
		t.Errorf("an error of Open is logged as %q", text)
	}
}

// TestConnectKV_frozen: connections over which nothing was answered yet are none of a store that is reached.
func TestConnectKV_frozen(t *testing.T) {
	t.Parallel()
	server := testdb.Private(t, localserver.RedisOptions{})
	must.Succeed(t, server.Stop())
	kv, err := Connect(Options{Settings: Settings{URL: server.Addr(), Timeout: 30 * time.Second}})
	must.Succeed(t, err)
	defer kv.Close()
	for range 100 { // the kernel accepts what the server does not
		if n := kv.ActiveConns(); n != 0 || !kv.Open() {
			t.Fatalf("%d connections, open %t", n, kv.Open())
		}
		time.Sleep(time.Millisecond)
	}
	must.Succeed(t, server.Cont())
	await.True(t, "a connection", func() bool { return !kv.Open() && kv.ActiveConns() > 0 })
}
