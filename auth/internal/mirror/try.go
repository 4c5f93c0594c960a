package mirror

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// errUndone makes a transaction roll back that must not change anything.
var errUndone = errors.New("undone")

// tried are the users that "auth mirror check -try" makes, with the columns and values that distinguish them.
var tried = []struct{ name, columns, values string }{
	{"a confirmed user", "email, email_confirmed_at, user_metadata", "$1::text || '@example.invalid', now(), '{\"name\": \"try\"}'"},
	{"a user who waits for confirmation", "email", "$1::text || '@example.invalid'"},
	{"a user with a phone", "phone, phone_confirmed_at", "'999' || translate(left($1::text, 8), 'abcdef', '012345'), now()"},
	{"an anonymous user", "is_anonymous, app_metadata", "true, case when $1::text is null then null else '{}'::jsonb end"},
	{"another anonymous user", "is_anonymous, app_metadata", "true, case when $1::text is null then null else '{}'::jsonb end"},
}

// try makes users as the daemon does, rolls back, and returns the errors of the application's triggers and constraints.
// All users are made in one transaction, so that a unique constraint is violated if two of them get the same value.
func (r *run) try(ctx context.Context) (found []string) {
	err := pgx.BeginFunc(ctx, r.conn, func(tx pgx.Tx) error {
		if err := r.exec(ctx, "set local statement_timeout = '5s'; set local role "+ident(r.role)); err != nil {
			return err
		}
		for _, one := range tried {
			err := pgx.BeginFunc(ctx, tx, func(pgx.Tx) error { return r.tryOne(ctx, one.columns, one.values) })
			if err != nil {
				found = append(found, fmt.Sprintf("%s can't be made: %s: %v", one.name, place(err), err))
			}
		}
		return errUndone
	})
	if err != nil && !errors.Is(err, errUndone) {
		found = append(found, err.Error())
	}
	return found
}

func (r *run) tryOne(ctx context.Context, columns, values string) error {
	id := uuid.New()
	err := r.exec(ctx, fmt.Sprintf(`insert into %s (id, aud, role, created_at, updated_at, %s)
		values ($1::uuid, 'authenticated', 'authenticated', now(), now(), %s)`, r.ours("users"), columns, values), id)
	if err != nil {
		return err
	}
	if columns == "email" {
		err = r.exec(ctx, "insert into "+r.ours("one_time_tokens")+
			` (id, user_id, kind, address, user_metadata, created_at, expires_at)
			values ($1, $1, 'signup', 'try', '{"name": "try"}', now(), now())`, id)
	}
	if err == nil {
		err = r.execAll(ctx, "set constraints all immediate", "set constraints all deferred")
	}
	return err
}
