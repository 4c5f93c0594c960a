package test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"

	"gatehouse/shared/testdb"
	"gatehouse/shared/upgradetest"
)

// Two replicas of the former release are replaced by today's, one by one under load, and these by the former again, on
// one Redis: they count together, so that exactly the limit passes, and give equal answers.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	previous := upgradetest.Previous(t)
	const limit, rules = 3000, "[{key: user, @3000/y}, {key: same, @1000000/y}]"
	env := map[string]string{"BACKEND_TYPE": "redis", "KVSTORE_URL": testdb.Redis(t).URL(), "DRAIN_DELAY": "300ms"}
	type replica struct {
		*process
		client pb.RateLimitServiceClient
	}
	var fleet upgradetest.Fleet[replica]
	var old, today replica
	start := func(former bool) {
		p := launchProgram(t, programOf(former, previous), rules, env)
		p.awaitReady(t)
		r := replica{p, p.dial(t)}
		if fleet.Add(r); former {
			old = r
		} else {
			today = r
		}
	}
	start(true)
	start(true)
	var passed, refused atomic.Int64
	var compare sync.Once
	fleet.Run(t, upgradetest.Phase(t), func(int) {
		for range 50 {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			got, err := fleet.Pick().client.ShouldRateLimit(ctx, request("user", "ann"))
			cancel()
			switch {
			case err != nil:
				t.Error(err)
			case got.OverallCode == pb.RateLimitResponse_OK:
				passed.Add(1)
			default:
				refused.Add(1)
			}
		}
	}, func(former bool) {
		start(former)
		compare.Do(func() { sameAnswers(t, old.client, today.client) })
		r := fleet.RemoveFirst()
		if err := r.Stop(30 * time.Second); err != nil { // one SIGTERM: a second would end the drain
			t.Errorf("a replaced replica: %v", err)
		}
	})
	for refused.Load() == 0 && !t.Failed() { // up to the limit, where the load has not got there
		if decide1(t, fleet.Pick().client, "user", "ann").OverallCode == pb.RateLimitResponse_OK {
			passed.Add(1)
		} else {
			refused.Add(1)
		}
	}
	if passed.Load() != limit {
		t.Errorf("%d passed, want %d", passed.Load(), limit)
	}

	read := func(name string) string {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	upgradetest.Settings(t, read(filepath.Join(previous, "ratelimit-settings.md")), read("docs/settings.md"),
		read("CHANGELOG.md"))
}

// programOf is the former release, or this test as the program.
func programOf(former bool, previous string) string {
	if former {
		return filepath.Join(previous, "ratelimit")
	}
	return os.Args[0]
}

// sameAnswers: the second of two versions goes on where the first one is, with the same fields.
func sameAnswers(t *testing.T, old, today pb.RateLimitServiceClient) {
	t.Helper()
	for n := range uint32(4) {
		client := old
		if n%2 == 1 {
			client = today
		}
		got := decide1(t, client, "same", "key")
		if len(got.Statuses) != 1 || got.Statuses[0].LimitRemaining != 1000000-1-n {
			t.Errorf("call %d: %v", n, got)
			continue
		}
		got.Statuses[0].LimitRemaining, got.Statuses[0].DurationUntilReset = 0, nil
		other := decide1(t, map[bool]pb.RateLimitServiceClient{true: today, false: old}[n%2 == 0], "alone", "key")
		same := decide1(t, client, "alone", "key")
		if !proto.Equal(other, same) {
			t.Errorf("%v, and of the other version %v", same, other)
		}
	}
}

// launchProgram is launch with another program.
func launchProgram(t testing.TB, program, rules string, env map[string]string) *process {
	t.Helper()
	return launchCommand(t, rules, env, func(all map[string]string) *exec.Cmd {
		cmd := command(all)
		cmd.Path, cmd.Args = program, []string{program}
		return cmd
	})
}
