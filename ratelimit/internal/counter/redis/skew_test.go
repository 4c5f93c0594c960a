package redis

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"gatehouse/shared/await"
	"gatehouse/shared/localserver"
	"gatehouse/shared/logtest"
	"gatehouse/shared/testdb"
)

// The clock of a server is read along with the PINGs; where the user may not, one line says so and all else goes on. Not
// parallel: the stores are checked for goroutines that they leave.
func TestSkew(t *testing.T) {
	server := testdb.Private(t, localserver.RedisOptions{})
	peer := redisClient(t, server.Addr(), 0)
	if err := peer.Do(t.Context(), peer.B().Arbitrary("ACL", "SETUSER", "few", "on", ">pw", "~*", "+@all", "-time").
		Build()).Error(); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		auth  string
		reads bool
		log   string
	}{{"", true, ""}, {"few:pw", false, "does not tell its time"}} {
		read := make(chan time.Duration, 100)
		var log logtest.Buffer
		s := newTestStore(t, Options{Settings: Settings{URL: server.Addr(), Auth: test.auth},
			Log: slog.New(slog.NewTextHandler(&log, nil)), Skew: func(at string, offset time.Duration) {
				if at != server.Addr() {
					t.Errorf("server %s", at)
				}
				read <- offset
			}})
		if test.reads {
			await.True(t, "the server's clock is read", func() bool { return len(read) > 0 })
			if offset := <-read; offset.Abs() > 10*time.Second { // it is the same clock, on however slow a machine
				t.Errorf("the server's clock is %s behind", offset)
			}
		} else {
			await.True(t, "a line about the clock", func() bool { return strings.Contains(log.String(), test.log) })
		}
		if add(t, s, now(), h("a", 1)); test.log != "" && strings.Count(log.String(), test.log) > 1 || len(read) > 1 || s.Open() {
			t.Errorf("%d readings, log %s", len(read), log.String())
		}
	}
}

func TestSkew_ahead(t *testing.T) {
	t.Parallel()
	at := time.Unix(1000, 250_000_000)
	if got := ahead(at, []int64{999, 500}); got != 1249500*time.Microsecond {
		t.Error(got)
	}
	if got := ahead(at, []int64{1001, 0}); got != -750*time.Millisecond {
		t.Error(got)
	}
}

func TestSkew_due(t *testing.T) {
	t.Parallel()
	report := func(string, time.Duration) {}
	for want, s := range map[bool][]*skew{
		true:  {{report: report}, {report: report, last: time.Now().Add(-skewEvery)}},
		false: {{}, {report: report, refused: true}, {report: report, last: time.Now()}},
	} {
		for i := range s {
			if s[i].due() != want {
				t.Errorf("%v, %d", want, i)
			}
		}
	}
}
