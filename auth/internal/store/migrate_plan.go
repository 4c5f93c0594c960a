package store

import (
	"context"

	"gatehouse/migrations"
)

// Planned is a migration that Migrate would apply.
type Planned struct {
	Name string
	// Outside: it does not run in a transaction. Breaks: older programs stop working on the schema.
	Outside, Breaks bool
}

// Plan returns what Migrate would apply, in order, and changes nothing.
func (db *DB) Plan(ctx context.Context) ([]Planned, error) {
	files, err := readMigrations(migrations.FS)
	if err != nil {
		return nil, err
	}
	missing, err := db.missing(ctx, files)
	var list []Planned
	for _, m := range missing {
		list = append(list, Planned{Name: m.name, Outside: m.outside, Breaks: m.breaks})
	}
	return list, err
}
