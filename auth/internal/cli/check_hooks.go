package cli

import (
	"context"
	"errors"
	"fmt"

	"gatehouse/auth/internal/config"
	"gatehouse/auth/internal/daemon"
	"gatehouse/auth/internal/hook"
	"gatehouse/auth/internal/store"
)

// hooks tests whether each hook can be called. db is nil if the database is unreachable. If try is set, it also calls
// hooks that are PostgreSQL functions.
func (r *report) hooks(ctx context.Context, c *config.Config, l *config.Live, db *store.DB, try bool) {
	set := hook.NewSet(hook.Options{}, l.Hooks)
	defer set.Close()
	for _, p := range set.Points() {
		r.hook(ctx, set, p, db, func(ctx context.Context) error {
			if !try || !l.Hooks[p].Function() {
				return nil
			}
			return daemon.TryHook(ctx, db, c, l, p)
		})
	}
}

// hook tests one hook. If a function lacks a right, every call fails, which is an error. A lost connection says nothing
// about the function. Any other refusal of the sample may be intended.
func (r *report) hook(ctx context.Context, set *hook.Set, p hook.Point, db *store.DB,
	try func(context.Context) error) {
	ctx, cancel := context.WithTimeout(ctx, checkPatience)
	defer cancel()
	err := set.Check(ctx, p, func(ctx context.Context, schema, function string) error {
		if db == nil {
			return errors.New("the database can't be queried")
		}
		return db.CheckFunction(ctx, schema, function)
	})
	what := "hook " + string(p) + ": " + set.Where(p)
	if err == nil {
		err = try(ctx)
		if err != nil && ctx.Err() == nil && !errors.Is(err, daemon.ErrHookRights) && !errors.Is(err, store.ErrUnavailable) {
			fmt.Fprintf(r.p.stdout, "warn  %s refuses a sample for an unknown user: %v\n", what, err)
			return
		}
	}
	r.say(what, err)
}
