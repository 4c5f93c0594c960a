package mail

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"
)

// refreshEvery is how often Run looks for templates that are no longer fresh.
const refreshEvery = 5 * time.Second

// Run keeps the templates of mails fresh, if Settings.Reloading is set, until ctx ends. Otherwise the first mail after
// MaxAge loads its template.
func (r *Renderer) Run(ctx context.Context) {
	tick := time.NewTicker(refreshEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			r.refresh(ctx)
		}
	}
}

// refresh loads the templates that are in use and no longer fresh.
func (r *Renderer) refresh(ctx context.Context) {
	t, now := r.texts.Load(), r.now()
	for _, b := range t.bodies {
		if t.Reloading && now.Sub(time.Unix(0, b.used.Load())) < cmp.Or(t.MaxIdle, 20*time.Minute) {
			b.get(ctx, r)
		}
	}
}

// Load loads every template, fresh or not, and returns errors of failed loads. It is for `auth check`, and for the
// start, so that the first mail does not wait.
func (r *Renderer) Load(ctx context.Context) error {
	var bad []error
	t := r.texts.Load()
	for _, kind := range Kinds {
		b := t.bodies[kind]
		if b == nil {
			continue
		}
		loaded, err := r.fetch.load(ctx, b.url, b.limits.size)
		if err != nil {
			bad = append(bad, fmt.Errorf("AUTH_MAILER_TEMPLATES_%s: %s: %w", kind.Setting(), b.shown(), err))
			continue
		}
		b.mu.Lock()
		b.good, b.next = loaded, r.now().Add(b.limits.age)
		b.mu.Unlock()
	}
	return errors.Join(bad...)
}
