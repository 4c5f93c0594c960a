package former

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Catalog is what the source's system catalogue says about the schema. Reading it needs no right on the schema.
type Catalog struct {
	*Schema
	// Version is the newest version of the schema that was applied; 0 if it cannot be read.
	Version int64
	// Database is the database's name, Role the role that this program connects as, Owner the owner of the table users.
	Database, Role, Owner string
	// Now is the server's time when the catalogue was read. Rows that have expired by this time are not copied. Rows
	// that expire later, while the takeover runs, are copied.
	Now time.Time
	// Recovery is true if the server is a standby.
	Recovery bool
	// Mark identifies the database cluster, its timeline, the database and the table users. It changes if one of these
	// is replaced.
	Mark string
	// Cluster and DatabaseID say which database has the schema. They do not depend on how the connection string names
	// it.
	Cluster, DatabaseID string
	// Unreadable are the tables that Role may not read, Hidden those of which row-level security hides rows.
	Unreadable, Hidden []string
}

// NotHeaps returns the tables to be copied that are not ordinary tables. Their rows do not show which transaction has
// written them.
func (c *Catalog) NotHeaps() (names []string) {
	for _, name := range Carried {
		if t, there := c.Tables[name]; there && !t.Heap {
			names = append(names, name)
		}
	}
	return names
}

// About returns approximately how many rows a table has, from its statistics; 0 if it has none.
func (c *Catalog) About(name string) int64 { return max(c.Tables[name].Rows, 0) }

// OldMark returns Mark in the form of older versions of this program, without the database.
func (c *Catalog) OldMark() string {
	parts := strings.Split(c.Mark, "/")
	return strings.Join(slices.Delete(parts, 2, 3), "/")
}

// selectPlace reads the parts of Mark, among others. A restored base backup has the same cluster identifier but another
// timeline. A restored dump has other OIDs of tables. A database created from a template has another OID itself.
const selectPlace = `
select now(), current_database()::text, current_user::text, pg_is_in_recovery(),
    (select system_identifier from pg_control_system())::text, (select timeline_id from pg_control_checkpoint())::text,
    (select oid from pg_database where datname = current_database())::text,
    coalesce((select pg_get_userbyid(c.relowner)::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
              where n.nspname = $1 and c.relname = 'users'), '')`

// Inspect reads s.Catalog from the source's system catalogue. It must be called before the other methods.
func (s *Source) Inspect(ctx context.Context) error {
	var c Catalog
	var timeline string
	err := s.read(ctx, func(conn *pgx.Conn) (err error) {
		if c.Schema, err = ReadSchema(ctx, conn, s.Schema); err != nil {
			return err
		}
		return conn.QueryRow(ctx, selectPlace, s.Schema).Scan(&c.Now, &c.Database, &c.Role, &c.Recovery, &c.Cluster,
			&timeline, &c.DatabaseID, &c.Owner)
	})
	if err != nil {
		return err
	}
	for _, name := range append(slices.Clone(Carried), "schema_migrations", "oauth_clients") {
		switch t, there := c.Tables[name]; {
		case !there:
		case !t.Readable:
			c.Unreadable = append(c.Unreadable, name)
		case t.Hidden:
			c.Hidden = append(c.Hidden, name)
		}
	}
	c.Mark = strings.Join([]string{c.Cluster, timeline, c.DatabaseID, fmt.Sprint(c.Tables["users"].OID)}, "/")
	s.Catalog = c
	s.prepareNames()
	if t := c.Tables["schema_migrations"]; !t.Readable || t.Hidden {
		return nil
	}
	return s.read(ctx, func(conn *pgx.Conn) (err error) {
		s.Catalog.Version, err = c.ReadVersion(ctx, conn)
		return err
	})
}

// UnknownRows describes the tables that this program does not know, that have rows and that Role may read: how many
// rows they have, and their foreign keys. A takeover does not change them.
func (s *Source) UnknownRows(ctx context.Context) (list []string, err error) {
	_, unknown := s.Catalog.Unknown()
	for _, name := range unknown {
		t := s.Catalog.Tables[name]
		if !t.Readable || t.Hidden {
			continue
		}
		var n int64
		var keys string
		if err := s.row(ctx, `select count(*), coalesce((
			select string_agg(', key ' || quote_ident(c.conname) || ' on ' || quote_ident(u.relname), '' order by c.conname)
			from pg_constraint c join pg_class u on u.oid = c.confrelid where c.conrelid = $1::bigint::oid and c.contype = 'f'), '')
			from `+s.Catalog.Table(name), []any{&n, &keys}, int64(t.OID)); err != nil {
			return nil, err
		}
		if n > 0 {
			list = append(list, fmt.Sprintf("%s (%d rows%s)", name, n, keys))
		}
	}
	return list, nil
}
