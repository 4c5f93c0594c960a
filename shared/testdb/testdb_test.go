package testdb

import (
	"net"
	"testing"

	"go.uber.org/goleak"

	"gatehouse/shared/localserver"
)

func TestRedis(t *testing.T) {
	a, b := Redis(t), Redis(t)
	if a.Addr != b.Addr || a.DB == b.DB || a.URL() == b.URL() {
		t.Errorf("%v and %v: want one server and two databases", a, b)
	}
	goleak.VerifyNone(t, IgnoreServers())
}

func TestPrivate(t *testing.T) {
	s := Private(t, localserver.RedisOptions{Socket: true})
	c, err := net.Dial(s.Network(), s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}
