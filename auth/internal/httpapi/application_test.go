package httpapi

import (
	"strings"
	"testing"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/shared/must"
)

// applicationRefuses is an application whose triggers on our users violate a constraint with the name of one of ours.
// What it says itself names the customer.
const applicationRefuses = `
create schema app;
create table app.users (email text not null);
create unique index users_email_key on app.users (email);
insert into app.users values ('taken');
create function app.refuse() returns trigger language plpgsql as
$$ begin insert into app.users values ('taken'); return null; end $$;
create constraint trigger refuse after insert or update or delete on users %s
    for each row execute function app.refuse();`

// A refusal of the application's SQL, also of the commit, answers with the words of the replaced service: nothing is
// kept or sent, the log has the place, and the metric the operation.
func TestApplication_refuses(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"", "deferrable initially deferred"} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			a := open(t)
			reader := sdkmetric.NewManualReader()
			var err error
			a.server.observer, err = NewObserver(nil, nil,
				sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)).Meter("test"))
			must.Succeed(t, err)
			admin := a.service()
			var ann userJSON
			a.do("POST /admin/users", map[string]any{"email": "ann@example.org", "password": sesame,
				"email_confirm": true}, admin).json(&ann)
			storetest.Exec(t, a.db, strings.Replace(applicationRefuses, "%s", when, 1))
			f := func(what string, body any, msg string) {
				t.Helper()
				a.do(what, body, admin).refused(500, "unexpected_failure", "Database error "+msg)
			}
			f("POST /signup", `{"email":"new@example.org","password":"`+sesame+`"}`, "saving new user")
			f("POST /otp", `{"email":"new@example.org"}`, "saving new user")
			f("POST /magiclink", `{"email":"new@example.org"}`, "saving new user")
			f("POST /invite", `{"email":"new@example.org"}`, "saving new user")
			f("POST /signup", `{}`, "creating anonymous user")
			f("POST /admin/users", `{"email":"new@example.org"}`, "creating new user")
			f("PUT /admin/users/"+ann.ID, `{"user_metadata":{"a":1}}`, "updating user")
			f("POST /token?grant_type=password", `{"email":"ann@example.org","password":"`+sesame+`"}`, "updating user")
			f("DELETE /admin/users/"+ann.ID, nil, "deleting user")
			if n, err := a.db.CountUsers(t.Context()); n != 1 || err != nil {
				t.Errorf("%d users, %v", n, err)
			}
			if list, err := a.db.Messages(t.Context(), store.MessageFilter{Limit: 10}, time.Now()); len(list) != 0 || err != nil {
				t.Errorf("%d messages, %v", len(list), err)
			}
			text := a.log.String()
			for _, want := range []string{"SQLSTATE 23505", "schema app", "table users", "constraint users_email_key",
				"PL/pgSQL function app.refuse() line 1"} {
				if !strings.Contains(text, want) {
					t.Errorf("the log lacks %s:\n%s", want, text)
				}
			}
			got := refusedBy(t, reader)
			for operation, want := range map[string]int64{"sign_up": 4, "anonymous": 1, "create": 1, "update": 2,
				"delete": 1} {
				if got[operation] != want {
					t.Errorf("%s: %d refused, want %d", operation, got[operation], want)
				}
			}
		})
	}
}

// refusedBy is the metric by operation.
func refusedBy(t *testing.T, reader *sdkmetric.ManualReader) map[string]int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	must.Succeed(t, reader.Collect(t.Context(), &all))
	counts := map[string]int64{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name != "auth.mirror.refused" {
				continue
			}
			for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
				operation, _ := p.Attributes.Value("operation")
				counts[operation.AsString()] = p.Value
			}
		}
	}
	return counts
}
