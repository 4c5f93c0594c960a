package mirror

import (
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"gatehouse/auth/internal/former"
	"gatehouse/auth/internal/former/formertest"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// unmirrored are our columns of the mirrored tables that have no former column, or must not be copied to it.
var unmirrored = map[string]string{
	"users": "id created_at updated_at email_unproven phone_unproven current_email_proven new_email_proven " +
		"sessions_void_before password_hash",
	"identities": "id email created_at updated_at",
	"factors":    "id user_id secret last_step created_at updated_at last_challenged_at",
	"sessions": "id user_id created_at secret_hash counter refreshed_at user_agent ip amr tag not_after ended_at " +
		"ended_reason passkey_id",
}

// Each of our columns is mirrored or named as not, and each mirrored column is there in the newest schema.
func TestColumns(t *testing.T) {
	t.Parallel()
	url := storetest.URL(t)
	formertest.CreateSchema(t, url, "auth", formertest.Newest)
	c := testdb.Connect(t, url)
	there, err := former.ReadSchema(t.Context(), c, "auth")
	must.Succeed(t, err)
	for _, table := range []rows{{here: "users", there: "users", columns: userColumns}, identities, factors, sessions} {
		var known []string
		for _, column := range table.columns {
			if !there.Has(table.there, column.name) {
				t.Errorf("auth.%s lacks %s", table.there, column.name)
			}
			if column.here != "" {
				known = append(known, column.here)
			}
		}
		known = append(known, strings.Fields(unmirrored[table.here])...)
		slices.Sort(known)
		rows, err := c.Query(t.Context(), `select a.attname::text from pg_attribute a
			where a.attrelid = $1::regclass and a.attnum > 0 and not a.attisdropped order by 1`, table.here)
		must.Succeed(t, err)
		ours, err := pgx.CollectRows(rows, pgx.RowTo[string])
		slices.Sort(ours)
		if err != nil || !slices.Equal(ours, known) {
			t.Errorf("%s has %q, known are %q: mirror the new column or name it in unmirrored, %v", table.here, ours,
				known, err)
		}
	}
}
