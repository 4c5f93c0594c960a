package redis

import (
	"reflect"
	"strings"
	"testing"

	"gatehouse/ratelimit/internal/counter/link"
)

func TestTarget(t *testing.T) {
	f := func(o Options, want target) {
		t.Helper()
		got, err := o.Settings.target()
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v: %+v, %v; want %+v", o, got, err, want)
		}
	}
	tcp := func(addr string) target { return target{at: link.Endpoint{Network: "tcp", Addr: addr}} }
	f(Options{Settings: Settings{URL: "localhost:6379"}}, tcp("localhost:6379"))
	f(Options{Settings: Settings{URL: "[::1]:6379", SocketType: "TCP"}}, tcp("[::1]:6379"))
	f(Options{Settings: Settings{URL: "/run/redis.sock"}},
		target{at: link.Endpoint{Network: "unix", Addr: "/run/redis.sock"}})
	f(Options{Settings: Settings{URL: "redis@1.sock", SocketType: "unix"}},
		target{at: link.Endpoint{Network: "unix", Addr: "redis@1.sock"}})
	f(Options{Settings: Settings{URL: "redis://db.example"}}, tcp("db.example:6379"))
	f(Options{Settings: Settings{URL: "redis://:s%40crt@h:1/3"}},
		target{at: link.Endpoint{Network: "tcp", Addr: "h:1"}, password: "s@crt", db: 3})
	f(Options{Settings: Settings{URL: "redis://u:p@h:1"}},
		target{at: link.Endpoint{Network: "tcp", Addr: "h:1"}, user: "u", password: "p"})
	f(Options{Settings: Settings{URL: "redis://h:1?username=u&password=p&db=7"}},
		target{at: link.Endpoint{Network: "tcp", Addr: "h:1"}, user: "u", password: "p", db: 7})
	f(Options{Settings: Settings{URL: "rediss://u:p@h/2"}},
		target{at: link.Endpoint{Network: "tcp", Addr: "h:6379"}, user: "u", password: "p", db: 2})
	f(Options{Settings: Settings{URL: "redis://default@h:1?password=p@ss"}},
		target{at: link.Endpoint{Network: "tcp", Addr: "h:1"}, user: "default", password: "p@ss"})
	f(Options{Settings: Settings{URL: "rediss://u:p@h/0?username=joe@corp"}},
		target{at: link.Endpoint{Network: "tcp", Addr: "h:6379"}, user: "joe@corp", password: "p"})

	// KVSTORE_AUTH is split at its first colon and wins over the URL.
	f(Options{Settings: Settings{URL: "h:1", Auth: "p"}},
		target{at: link.Endpoint{Network: "tcp", Addr: "h:1"}, password: "p"})
	f(Options{Settings: Settings{URL: "h:1", Auth: "u:p:q"}},
		target{at: link.Endpoint{Network: "tcp", Addr: "h:1"}, user: "u", password: "p:q"})
	f(Options{Settings: Settings{URL: "redis://u:p@h:1", Auth: "q"}},
		target{at: link.Endpoint{Network: "tcp", Addr: "h:1"}, password: "q"})
}

func TestTarget_refused(t *testing.T) {
	f := func(o Options, want string) {
		t.Helper()
		err := o.Settings.Check()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%v names the password", err)
		}
	}
	f(Options{}, "KVSTORE_URL: missing")
	f(Options{Settings: Settings{URL: "http://u:secret@h:1"}}, "scheme http:// is neither redis:// nor rediss://")
	f(Options{Settings: Settings{URL: "redis://u:secret%@h:1"}}, "not a URL")
	for _, begun := range []string{"x@y", "12"} { // digits look like a port
		for _, split := range []string{"/", "?", "?a=", "?a;", "?a%zz", "/secret?password="} {
			f(Options{Settings: Settings{URL: "redis://u:" + begun + split + "secret@h:1"}}, "percent-encode")
		}
		for _, split := range []string{"#", "/#", "?a#"} {
			f(Options{Settings: Settings{URL: "redis://u:" + begun + split + "secret@h:1"}}, "write %23")
		}
	}
	f(Options{Settings: Settings{URL: "redis://h:1/0#x"}}, "# begins a fragment")
	f(Options{Settings: Settings{URL: "redis://u:sec/secret@h:1"}}, "KVSTORE_URL")
	f(Options{Settings: Settings{URL: "redis://u:secret@"}}, "no host:port")
	f(Options{Settings: Settings{URL: "redis://u:secret@h:99999"}}, "no host:port")
	f(Options{Settings: Settings{URL: "redis://h/x"}}, `database "x" is not a number`)
	f(Options{Settings: Settings{URL: "redis://h?timeout=3"}}, `unknown parameter "timeout"`)
	f(Options{Settings: Settings{URL: "h:1,h:2"}}, "not a list")
	f(Options{Settings: Settings{URL: "h"}}, "neither host:port nor a path")
	f(Options{Settings: Settings{URL: "h:port"}}, "neither host:port nor a path")
	f(Options{Settings: Settings{URL: "/a/path", SocketType: "tcp"}}, "tcp needs host:port")
	f(Options{Settings: Settings{URL: "secret@h:1"}}, "need redis:// in front, or KVSTORE_AUTH")
	f(Options{Settings: Settings{URL: ":secret@h:1,h:2"}}, "need redis:// in front, or KVSTORE_AUTH")
	f(Options{Settings: Settings{URL: "h:1,u:secret@h:2", Type: "cluster"}}, "go into KVSTORE_AUTH")
	f(Options{Settings: Settings{URL: "m,secret@h:1", Type: "Sentinel"}}, "go into KVSTORE_AUTH")
	f(Options{Settings: Settings{URL: "redis://h:1", SocketType: "unix"}}, "unix needs a path")
	f(Options{Settings: Settings{URL: "h:1", SocketType: "udp"}}, `"udp" is neither tcp nor unix`)
}
