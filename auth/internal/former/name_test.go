package former_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"gatehouse/auth/internal/former"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// Name quotes what the server would quote, so that suggested statements run whatever the
// application's tables are called.
func TestName(t *testing.T) {
	t.Parallel()
	for _, f := range []struct{ name, want string }{
		{"profiles", "profiles"}, {"user_2", "user_2"}, {"_x", "_x"}, {"User", `"User"`}, {"2nd", `"2nd"`}, {"", `""`},
		{`a"b`, `"a""b"`},
		{"user", `"user"`}, {"order", `"order"`}, {"json", `"json"`}, {"größe", `"größe"`},
	} {
		if got := former.Name("app", f.name); got != "app."+f.want {
			t.Errorf("Name(app, %s) = %s, want app.%s", f.name, got, f.want)
		}
	}
	conn := testdb.Connect(t, testdb.Postgres(t))
	rows, err := conn.Query(t.Context(), "select word, quote_ident(word) from pg_get_keywords()")
	must.Succeed(t, err)
	var word, quoted string
	n := 0
	if _, err := pgx.ForEachRow(rows, []any{&word, &quoted}, func() error {
		n++
		if got := former.Name(word); quoted != word && got != quoted {
			t.Errorf("Name(%s) = %s, want %s", word, got, quoted)
		}
		return nil
	}); err != nil || n < 400 {
		t.Errorf("%d keywords: %v", n, err)
	}
}
