package daemon

import (
	"context"
	"fmt"

	"gatehouse/auth/internal/store"
)

// CheckSchema refuses a schema that belongs to another program, and one whose new tables others could read. It reads the
// catalogue alone, before any statement on a table of ours.
func CheckSchema(ctx context.Context, db *store.DB) error {
	f, err := db.ForeignTables(ctx)
	own := fmt.Sprintf("create schema gatehouse authorization %s; search_path=gatehouse in DATABASE_URL", f.Role)
	switch {
	case err != nil:
		return err
	case f.Former:
		return fmt.Errorf("schema %q holds the tables of the service that this one replaces; they are neither read nor changed."+
			" Give this program a schema of its own (%s) and carry the users over: auth takeover -from %s", f.Schema, own, f.Schema)
	case f.Migrations:
		return fmt.Errorf(`table "%s.schema_migrations" belongs to another program: give this one a schema of its own`+
			" (search_path in DATABASE_URL) or AUTH_DB_NAMESPACE", f.Schema)
	case f.Readers != "":
		return fmt.Errorf("new tables in schema %q would be readable by %s (default privileges of role %s), password hashes too:"+
			" give this program a schema of its own (%s)", f.Schema, f.Readers, f.Role, own)
	}
	return nil
}
