package service

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/limits/calendar"
	"gatehouse/ratelimit/internal/limits/rulefile"
	"gatehouse/ratelimit/internal/stats"
	"gatehouse/shared/must"
)

// TestLoader_whileLoading: a slow load does not block the readers of the state.
func TestLoader_whileLoading(t *testing.T) {
	registry := stats.NewRegistry(stats.Options{})
	l := NewLoader(New(Options{Stats: registry}), limits.Options{}, slog.New(slog.DiscardHandler), func(int) {})
	must.Succeed(t, l.Load(context.Background(), []rulefile.File{{Name: "a.yaml", Text: []byte("domain: d\n")}}))
	begun, goOn, ended := make(chan bool), make(chan bool), make(chan error)
	go func() {
		ended <- l.load(context.Background(), func(limits.Options) (*limits.Rules, []limits.Problem, error) {
			close(begun)
			<-goOn
			return nil, nil, errors.New("no good")
		})
	}()
	<-begun
	rejected := func() (v int64) {
		registry.Each(func(name string, _ stats.Kind, value int64) {
			if name == "ratelimit.service.config_rejected" {
				v = value
			}
		})
		return v
	}
	if s := l.State(); s.Generation != 1 || s.Error != "" || rejected() != 0 {
		t.Errorf("while loading: %+v", s)
	}
	close(goOn)
	if err := <-ended; err == nil {
		t.Error("no error")
	}
	if s := l.State(); s.Generation != 1 || s.Error != "no good" || s.ErrorAt.IsZero() || rejected() != 1 {
		t.Errorf("afterwards: %+v", s)
	}
}

// A reload's line says what changed; one error is logged once, however often it is read.
func TestLoader_log(t *testing.T) {
	var log strings.Builder
	registry := stats.NewRegistry(stats.Options{})
	l := NewLoader(New(Options{Stats: registry}), limits.Options{}, slog.New(slog.NewTextHandler(&log, nil)),
		func(int) {})
	load := func(text string) string {
		log.Reset()
		l.Load(context.Background(), []rulefile.File{{Name: "a.yaml", Text: []byte(text)}})
		return log.String()
	}
	const one = "domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]\n"
	if got := load(one); strings.Contains(got, "added=") {
		t.Errorf("first load: %s", got)
	}
	if got := load(strings.Replace(one, ": 1}", ": 2}", 1)); !strings.Contains(got,
		`added=0 removed=0 changed=1 first="[~ d k: 1 per DAY -> 2 per DAY]"`) {
		t.Errorf("reload: %s", got)
	}
	if got := load("domian: d\n"); !strings.Contains(got, "level=ERROR") {
		t.Errorf("mistake: %s", got)
	}
	if got := load("domian: d\n"); strings.Contains(got, "level=ERROR") || !strings.Contains(got, "still refused") {
		t.Errorf("the same mistake: %s", got)
	}
	if got := load("domain: 5: 6\n"); !strings.Contains(got, "level=ERROR") {
		t.Errorf("another mistake: %s", got)
	}
	load(one)
	if got := load("domain: 5: 6\n"); !strings.Contains(got, "level=ERROR") {
		t.Errorf("the mistake again after a good set: %s", got)
	}
}

// A load with calendars says where the zones' data come from; others do not mention them.
func TestLoader_zones(t *testing.T) {
	var log strings.Builder
	l := NewLoader(New(Options{Stats: stats.NewRegistry(stats.Options{})}), limits.Options{},
		slog.New(slog.NewTextHandler(&log, nil)), func(int) {})
	f := func(limit, want string) {
		t.Helper()
		log.Reset()
		text := "domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1" + limit + "}}]\n"
		must.Succeed(t, l.Load(context.Background(), []rulefile.File{{Name: "a.yaml", Text: []byte(text)}}))
		if got := strings.Contains(log.String(), "time zone data"); got != (want != "") ||
			!strings.Contains(log.String(), want) {
			t.Errorf("%q logs %s, want %q", limit, log.String(), want)
		}
	}
	f("", "")
	t.Setenv("ZONEINFO", "")
	f(", calendar: Europe/Berlin", "zones=[Europe/Berlin]")
	f(", calendar: Europe/Berlin", "source="+calendar.Source("Europe/Berlin"))
}
