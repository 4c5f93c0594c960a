package daemon

import (
	"context"
	"errors"
	"fmt"

	"gatehouse/auth/internal/former"
	"gatehouse/auth/internal/store"
)

// CheckSchema refuses a schema that belongs to another program, and a schema whose new tables other roles could read or
// write. It reads only PostgreSQL's catalogue, and runs before any statement that uses this daemon's tables.
func CheckSchema(ctx context.Context, db *store.DB) error {
	f, err := db.ForeignTables(ctx)
	switch {
	case err != nil:
		return err
	case f.Former:
		return errors.New(former.Occupied(f.Schema, f.Role))
	case f.Taken != "":
		return fmt.Errorf(`table "%s.%s" belongs to another program: give this one a schema of its own`+
			" (search_path in DATABASE_URL) or AUTH_DB_NAMESPACE", f.Schema, f.Taken)
	case f.Readers != "":
		return fmt.Errorf(
			"new tables in schema %q would be readable or writable by %s (default privileges of role %s), password hashes too:"+
				" give this program a schema of its own (%s)", f.Schema, f.Readers, f.Role, former.OwnSchema(f.Role))
	}
	return nil
}
