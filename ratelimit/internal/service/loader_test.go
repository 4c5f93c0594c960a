package service

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/stats"
)

// TestLoader_whileLoading: a set that takes its time holds up nobody who asks how things are.
func TestLoader_whileLoading(t *testing.T) {
	registry := stats.NewRegistry(stats.Options{})
	l := NewLoader(New(Options{Stats: registry}), limits.Options{}, slog.New(slog.DiscardHandler), func(int) {})
	if err := l.Load(context.Background(), []limits.File{{Name: "a.yaml", Text: []byte("domain: d\n")}}); err != nil {
		t.Fatal(err)
	}
	begun, goOn, ended := make(chan bool), make(chan bool), make(chan error)
	go func() {
		ended <- l.load(context.Background(), 0, func() (*limits.Rules, []limits.Problem, error) {
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
