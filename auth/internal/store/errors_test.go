package store_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/shared/must"
)

// application has tables of its own that triggers on ours fill, and constraints with the names of ours.
const application = `
create schema app;
create table app.users (
    id uuid primary key, aud text not null default '', email text not null,
    user_id uuid not null default gen_random_uuid());
create unique index users_email_key on app.users (email);
create table app.others (id uuid primary key);
create function app.handle() returns trigger language plpgsql as
$$ begin insert into app.users (id, email) values (new.id, 'same@example.org'); return null; end $$;
create function app.orphan() returns trigger language plpgsql as
$$ begin insert into app.others values (new.id); return null; end $$;
create function app.nobody() returns trigger language plpgsql as
$$ begin insert into app.users (id, email, user_id) values (new.id, new.email, null); return null; end $$;
insert into app.users (id, email) values (gen_random_uuid(), 'same@example.org');
`

// A constraint means something only where it is ours: one of the application's with the same name, or a key of its own
// that is violated, is the application's refusal.
func TestErrors_ofTheApplication(t *testing.T) {
	t.Parallel()
	const trigger = "create trigger x after insert on users for each row execute function "
	for name, test := range map[string]struct {
		sql   string
		wants []string
	}{
		"unique": {trigger + "app.handle()", []string{"23505", "schema app, table users",
			"users_email_key", "PL/pgSQL function app.handle() line 1"}},
		"foreign key": {"alter table app.others add foreign key (id) references app.users;" +
			trigger + "app.orphan()", []string{"23503", "schema app, table others"}},
		"not null": {trigger + "app.nobody()", []string{"23502", "schema app, table users"}},
		"at commit": {"alter table app.others add foreign key (id) references app.users " +
			"deferrable initially deferred; " + trigger + "app.orphan()", []string{"23503", "schema app, table others"}},
		"trigger at commit": {"create constraint trigger x after insert on users deferrable initially deferred " +
			"for each row execute function app.handle()", []string{"23505", "schema app, table users"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := storetest.Open(t)
			storetest.Exec(t, db, application+test.sql)
			u := newUser("mia@example.org")
			var levels []store.Level
			for doing, err := range map[string]error{
				"batch": try(t, db, func(b *store.Batch) {
					b.InsertUser(u)
					b.Levels(&levels, tries)
				}),
				"transaction": db.InTx(t.Context(), func(tx *store.Tx) error {
					b := tx.Batch()
					b.InsertUser(u)
					return b.Send(t.Context())
				}),
			} {
				if !errors.Is(err, store.ErrApplication) || errors.Is(err, store.ErrEmailTaken) ||
					errors.Is(err, store.ErrUserGone) || errors.Is(err, store.ErrUnavailable) {
					t.Errorf("%s: %v", doing, err)
					continue
				}
				for _, want := range test.wants {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("%s: %v, want %s in it", doing, err, want)
					}
				}
			}
			if _, err := db.User(t.Context(), u.ID); !errors.Is(err, store.ErrNotFound) {
				t.Errorf("the user: %v", err)
			}
		})
	}
}

// What fails below a function that mirrors rows is the application's refusal, and the log names the functions alone.
func TestErrors_ofTheMirror(t *testing.T) {
	t.Parallel()
	for _, ns := range []string{"", "own_"} {
		url := storetest.URL(t)
		const body = `() returns trigger language plpgsql set search_path = pg_catalog, pg_temp as
			$$ begin perform app.guard(); return null; end $$;`
		script(t, url, `create schema "Here"; create schema app;
			create function app.guard() returns void language plpgsql as
			$$ begin raise exception 'mia@example.org is no customer'; end $$;
			create function "Here".`+ns+`mirror_user`+body+`create function "Here".other`+body)
		own := open(t, inSchema(url, "%22Here%22"), ns)
		must.Succeed(t, must.ErrOf(own.Migrate(t.Context())))
		const trigger = `users for each row execute function "Here".`
		script(t, url, `create trigger x after insert on "Here".`+ns+trigger+ns+`mirror_user()`)
		err := try(t, own, func(b *store.Batch) { b.InsertUser(newUser("mia@example.org")) })
		if !errors.Is(err, store.ErrApplication) || !strings.Contains(err.Error(), "P0001") ||
			!strings.Contains(err.Error(), "PL/pgSQL function app.guard()") {
			t.Errorf("%q: %v", ns, err)
		}
		if strings.Contains(err.Error(), `SQL statement "`) {
			t.Errorf("%q: a statement stands in %v", ns, err)
		}
		script(t, url, `drop trigger x on "Here".`+ns+`users;
			create trigger x after insert on "Here".`+ns+trigger+`other()`)
		err = try(t, own, func(b *store.Batch) { b.InsertUser(newUser("mia@example.org")) })
		if err == nil || errors.Is(err, store.ErrApplication) {
			t.Errorf("%q: a function that is no mirror's: %v", ns, err)
		}
	}
}

// Ours mean what they meant, in a schema that is not the first of the search path too.
func TestErrors_ours(t *testing.T) {
	t.Parallel()
	url := storetest.URL(t)
	script(t, url, `create schema early`)
	db := open(t, url, "")
	other := open(t, inSchema(url, "early,public"), "")
	addUser(t, db, "mia@example.org")
	for _, db := range []*store.DB{db, other} {
		if err := try(t, db, func(b *store.Batch) { b.InsertUser(newUser("mia@example.org")) }); !errors.Is(err,
			store.ErrEmailTaken) {
			t.Error(err)
		}
		err := try(t, db, func(b *store.Batch) { b.InsertSession(newSession(store.User{ID: uuid.New()}, noon)) })
		if !errors.Is(err, store.ErrUserGone) {
			t.Error(err)
		}
	}
}

// failsFirst raises a deadlock's error the first time, once the rows of the statement have come.
const failsFirst = `
create sequence tried;
create function fail_first() returns trigger language plpgsql as $$
begin
    if nextval('tried') = 1 then raise exception 'deadlock detected' using errcode = '40P01'; end if;
    return null;
end $$;
`

// A statement or batch that is a transaction of its own is sent again after a deadlock, and gives what it found the
// second time, not both.
func TestAgain_afterDeadlock(t *testing.T) {
	t.Parallel()
	const row = " for each row execute function fail_first()"
	for name, on := range map[string]func(table string) string{
		"at once": func(table string) string {
			return failsFirst + "create trigger x after update or insert on " + table + row
		},
		"at commit": func(table string) string {
			return failsFirst + "create constraint trigger x after update or insert on " + table +
				" deferrable initially deferred" + row
		},
	} {
		for what, act := range map[string]func(t *testing.T, db *store.DB, u store.User, s uuid.UUID){
			"users": func(t *testing.T, db *store.DB, u store.User, s uuid.UUID) {
				got, err := db.OpenSession(t.Context(), store.OpenSession{Session: newSession(u, noon),
					IfPassword: "hash", Audit: store.Audit{At: noon, Action: store.ActionLogin}})
				if err != nil || len(got.Identities) != 1 {
					t.Errorf("%d identities, %v", len(got.Identities), err)
				}
			},
			"sessions": func(t *testing.T, db *store.DB, u store.User, s uuid.UUID) {
				got, err := db.Refresh(t.Context(), store.Refresh{Session: s, SecretHash: secretOf, Now: noon})
				if err != nil || len(got.User.Identities) != 1 || !got.Rotated {
					t.Errorf("%d identities, %v", len(got.User.Identities), err)
				}
			},
			"audit": func(t *testing.T, db *store.DB, u store.User, s uuid.UUID) {
				var list []store.Identity
				var found store.User
				var levels []store.Level
				err := try(t, db, func(b *store.Batch) {
					b.Identities(&list, u.ID)
					b.User(&found, u.ID)
					b.Levels(&levels, tries)
					b.Audit(store.Audit{At: noon, Action: store.ActionLogin, Actor: u.ID})
				})
				if err != nil || len(list) != 1 || len(found.Identities) != 1 || len(levels) != 1 {
					t.Errorf("%d identities, %d of the user, %d levels, %v", len(list), len(found.Identities),
						len(levels), err)
				}
				if got := trail(t, db); len(got) != 1 {
					t.Errorf("the log has %v", got)
				}
			},
			"limits": func(t *testing.T, db *store.DB, u store.User, s uuid.UUID) {
				if err := db.FailedPassword(t.Context(), store.FailedPassword{Tries: tries, Now: noon,
					Note:  store.NewInterval([]byte("n"), 1),
					Audit: store.Audit{At: noon, Action: store.ActionLoginFailed}}); err != nil {
					t.Error(err)
				}
			},
		} {
			t.Run(name+" on "+what, func(t *testing.T) {
				t.Parallel()
				db := storetest.Open(t)
				u := addUser(t, db, "mia@example.org")
				s := addSession(t, db, u, noon)
				storetest.Exec(t, db, on(what))
				act(t, db, u, s)
			})
		}
	}
}

// What stays in a deadlock fails in the end.
func TestAgain_givesUp(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	storetest.Exec(t, db, strings.Replace(failsFirst, "= 1", "< 100", 1)+
		"create trigger x after insert on users for each row execute function fail_first()")
	err := try(t, db, func(b *store.Batch) { b.InsertUser(newUser("mia@example.org")) })
	if !errors.Is(err, store.ErrUnavailable) {
		t.Error(err)
	}
}

// inSchema is a URL of the same database with another search path.
func inSchema(url, path string) string {
	sep := "?"
	if strings.Contains(url, "?") {
		sep = "&"
	}
	return url + sep + "search_path=" + path
}

func script(t *testing.T, url, sql string) {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	must.Succeed(t, err)
	defer c.Close(context.Background())
	must.Succeed(t, must.ErrOf(c.Exec(t.Context(), sql)))
}
