package localserver

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"gatehouse/shared/await"
)

func TestRedisSentinels(t *testing.T) {
	begun := time.Now()
	s, err := RedisSentinels(t.Context(),
		SentinelOptions{Password: "pw", SentinelPassword: "spw", DownAfter: 200 * time.Millisecond})
	skipMissing(t, err)
	defer s.Close()
	t.Logf("started in %v", time.Since(begun).Round(time.Millisecond))
	master, err := s.Master(t.Context())
	if err != nil || master != s.Servers[0] {
		t.Fatalf("the master is %v, %v", master, err)
	}
	if n := strings.Count(s.URL(), ","); n != 3 || !strings.HasPrefix(s.URL(), MasterName+",") {
		t.Errorf("URL %s", s.URL())
	}
	s.Servers[0].Kill()
	await.True(t, "another master", func() bool {
		master, err = s.Master(t.Context())
		return err == nil && master != s.Servers[0]
	}, func() string { return fmt.Sprintf("%v, %v", master, err) })
}

func TestRedisCluster(t *testing.T) {
	begun := time.Now()
	c, err := RedisCluster(t.Context(), ClusterOptions{Password: "pw"})
	skipMissing(t, err)
	defer c.Close()
	t.Logf("started in %v", time.Since(begun).Round(time.Millisecond))
	// foo is in slot 12182: the third master's.
	if _, err := RedisCommand(t.Context(), c.Nodes[2].Addr(), "pw", "SET", "foo", "1"); err != nil {
		t.Error(err)
	}
	if _, err := RedisCommand(t.Context(), c.Nodes[0].Addr(), "pw", "SET", "foo", "1"); err == nil ||
		!strings.HasPrefix(err.Error(), "localserver: SET: MOVED 12182 "+c.Nodes[2].Addr()) {
		t.Errorf("%v, want MOVED", err)
	}
	got, err := RedisCommand(t.Context(), c.Nodes[5].Addr(), "pw", "ROLE")
	if err != nil || !strings.HasPrefix(got, "slave\n") {
		t.Errorf("the last node's role: %q, %v", got, err)
	}
}

func skipMissing(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, ErrMissing) && os.Getenv("REQUIRE_SERVERS") != "1" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
}
