package clock

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse/shared/logtest"
)

// at is a reading that took so long, of a server whose clock is ahead by off.
func at(off, took time.Duration) Reading {
	sent := time.Now()
	return Reading{Server: sent.Add(took/2 + off).Round(0), Sent: sent, Received: sent.Add(took)}
}

func off(c *Clock) time.Duration { return -c.Offset() }

func TestClock(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		then func(*Clock)
		want time.Duration // by how much the server is taken to be ahead
		log  string
	}{
		{"none", nil, 0, ""},
		{"first", func(c *Clock) { c.Take(at(time.Hour, 0)) }, time.Hour, "differs from the database's"},
		{"the first may be slow", func(c *Clock) { c.Start(at(time.Second, time.Minute)) }, time.Second, ""},
		{"slow", func(c *Clock) {
			c.Start(at(time.Second, 0))
			c.Take(at(time.Minute, 1001*time.Millisecond))
		}, time.Second, ""},
		{"a step", func(c *Clock) {
			c.Start(at(0, 0))
			c.Take(at(-501*time.Millisecond, 0))
		}, -501 * time.Millisecond, "another than was computed"},
		{"slewed, at first", func(c *Clock) {
			c.Start(at(0, 0))
			c.Take(at(500*time.Millisecond, 0))
			time.Sleep(10 * time.Second)
		}, 50 * time.Millisecond, ""},
		{"slewed, backward and in the end", func(c *Clock) {
			c.Start(at(0, 0))
			c.Take(at(-500*time.Millisecond, 0))
			time.Sleep(time.Hour)
		}, -500 * time.Millisecond, ""},
		{"slewed, then read again", func(c *Clock) {
			c.Start(at(0, 0))
			c.Take(at(100*time.Millisecond, 0))
			time.Sleep(10 * time.Second)
			c.Take(at(100*time.Millisecond, 0))
			time.Sleep(10 * time.Second)
		}, 100 * time.Millisecond, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var log logtest.Buffer
			synctest.Test(t, func(t *testing.T) {
				c := New(slog.New(slog.NewTextHandler(&log, nil)))
				if test.then != nil {
					test.then(c)
				}
				if got := off(c); got != test.want {
					t.Errorf("the server is %s ahead, want %s", got, test.want)
				}
				if now := c.Now().Sub(time.Now().Round(0)); now != test.want {
					t.Errorf("Now is %s ahead, want %s", now, test.want)
				}
			})
			if got := log.String(); (test.log == "") != (got == "") || !strings.Contains(got, test.log) {
				t.Errorf("log %q, want %q", got, test.log)
			}
		})
	}
}

// The warning of a wrong clock comes once an hour.
func TestClock_warns(t *testing.T) {
	t.Parallel()
	var log logtest.Buffer
	synctest.Test(t, func(t *testing.T) {
		c := New(slog.New(slog.NewTextHandler(&log, nil)))
		for range 2 * 60 {
			c.Take(at(time.Minute, 0))
			time.Sleep(time.Minute)
		}
	})
	if n := strings.Count(log.String(), "differs from the database's"); n != 2 {
		t.Errorf("%d lines in two hours:\n%s", n, log.String())
	}
}

func TestClock_nil(t *testing.T) {
	t.Parallel()
	if d := time.Since((*Clock)(nil).Now()); d < 0 || d > time.Minute {
		t.Errorf("a nil clock is %s late", d)
	}
}

func TestAllocs(t *testing.T) {
	c := New(slog.New(slog.DiscardHandler))
	c.Start(at(time.Hour, 0))
	if n := testing.AllocsPerRun(100, func() { c.Now() }); n != 0 {
		t.Errorf("Now allocates %v times", n)
	}
}
