package takeover

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// hideValues leaves of a database's error what can't hold a row's values: SQLSTATE, table and constraint.
func hideValues(err error) error {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || errors.Is(err, context.Canceled) {
		return err
	}
	var parts []string
	for _, p := range [][2]string{{"table", pg.TableName}, {"constraint", pg.ConstraintName}} {
		if p[1] != "" {
			parts = append(parts, p[0]+" "+p[1])
		}
	}
	text := "the database refuses it: SQLSTATE " + pg.Code
	if len(parts) > 0 {
		text += " (" + strings.Join(parts, ", ") + ")"
	}
	return errors.New(text)
}

// count is a number with commas.
func count(n int64) string {
	digits := fmt.Sprint(n)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
