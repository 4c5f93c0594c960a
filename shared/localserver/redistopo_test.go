package localserver

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"gatehouse/shared/await"
	"gatehouse/shared/must"
)

func TestRedisSentinels(t *testing.T) {
	begun := time.Now()
	s, err := RedisSentinels(t.Context(),
		SentinelOptions{Password: "pw", SentinelPassword: "spw", DownAfter: 200 * time.Millisecond})
	started(t, err)
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
	started(t, err)
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

// started ends t with the error of a server's start, or skips it without the program, as testdb.Started does.
func started(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, ErrMissing) {
		must.Have(t, err)
	}
	must.Succeed(t, err)
}
