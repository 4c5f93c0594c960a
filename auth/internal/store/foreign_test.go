package store_test

import (
	"strings"
	"testing"

	"gatehouse/auth/internal/former/formertest"
	"gatehouse/auth/internal/store"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

func TestForeignTables(t *testing.T) {
	t.Parallel()
	url := testdb.Postgres(t)
	in := func(schema string) string {
		sep := "?"
		if strings.Contains(url, "?") {
			sep = "&"
		}
		return url + sep + "search_path=" + schema
	}
	f := func(schema, namespace string, want store.ForeignTables) {
		t.Helper()
		got, err := open(t, in(schema), namespace).ForeignTables(t.Context())
		if got.Role == "" {
			t.Errorf("%s %s: no role", schema, namespace)
		}
		got.Role = ""
		if err != nil || got != want {
			t.Errorf("%s %s: %+v, %v; want %+v", schema, namespace, got, err, want)
		}
	}
	formertest.CreateSchema(t, url, "auth", formertest.Newest)
	formertest.CreateSchema(t, url, "older", formertest.Oldest)
	formertest.Exec(t, url, `create schema gatehouse; create schema rails; create table rails.schema_migrations (version text);
		create schema shop; create table shop.sessions (id int); create schema hidden; create table hidden.users (instance_id int, raw_app_meta_data int)`)
	f("auth", "", store.ForeignTables{Schema: "auth", Former: true, Taken: "identities"})
	f("older", "", store.ForeignTables{Schema: "older", Former: true, Taken: "identities"})
	f("auth", "gh_", store.ForeignTables{Schema: "auth"})
	f("rails", "", store.ForeignTables{Schema: "rails", Taken: "schema_migrations"})
	f("rails", "gh_", store.ForeignTables{Schema: "rails"})
	f("shop", "", store.ForeignTables{Schema: "shop", Taken: "sessions"})
	f("shop", "gh_", store.ForeignTables{Schema: "shop"})
	f("gatehouse,auth", "", store.ForeignTables{Schema: "gatehouse"})
	f("hidden", "", store.ForeignTables{Schema: "hidden", Former: true, Taken: "users"})
	f("nowhere", "", store.ForeignTables{})
	for _, namespace := range []string{"", "gh_"} {
		must.Succeed(t, must.ErrOf(open(t, in("gatehouse"), namespace).Migrate(t.Context())))
		f("gatehouse", namespace, store.ForeignTables{Schema: "gatehouse"})
	}
	must.Succeed(t, must.ErrOf(open(t, in("auth"), "gh_").Migrate(t.Context())))
	f("auth", "gh_", store.ForeignTables{Schema: "auth"})
}
