package takeover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"gatehouse/auth/internal/former"
	"gatehouse/auth/internal/store"
)

// abandon deletes an open takeover and all rows of the tables into which it copies. It does not need a connection to
// the source.
func (r *run) abandon(ctx context.Context) error {
	f := &findings{r: r}
	n, err := r.DB.Pending(ctx)
	if err != nil {
		return err
	}
	if n > 0 {
		f.refuse("the database lacks %d migrations: auth migrate applies them", n)
		return f.told()
	}
	list, err := r.DB.Moves(ctx, store.MoveTakeover)
	if err != nil {
		return err
	}
	if len(list) == 0 || list[0].Closed {
		f.refuse("no takeover is open")
		return f.told()
	}
	if err := f.foreignKeys(ctx); err != nil {
		return err
	}
	if err := f.told(); err != nil {
		return err
	}
	if err := r.DB.AbandonMove(ctx, list[0].ID); err != nil {
		if errors.Is(err, store.ErrMoveLost) {
			return store.ErrMoveLost
		}
		return err
	}
	if r.JSON {
		return json.NewEncoder(r.Out).Encode(struct {
			Source string `json:"source"`
			State  string `json:"state"`
		}{list[0].Source, "abandoned"})
	}
	fmt.Fprintf(r.Out, "abandoned the takeover from %s: the tables here are empty\n", list[0].Source)
	return nil
}

// moveBack returns the statement that makes a foreign key of the application refer to the source's table again. If the
// source is in another database, the statement only drops the key.
func (r *run) moveBack(k store.ForeignKey) string {
	drop := "alter table " + k.QuotedTable + " drop constraint " + k.Name
	columns, rules, found := strings.Cut(strings.TrimPrefix(k.Definition, "FOREIGN KEY "), " REFERENCES ")
	if !found || k.Target != "users" || r.Source == nil || r.Mode != Abandon && !r.result.sameDatabase {
		return drop + ";"
	}
	return drop + ", add constraint " + k.Name + " foreign key " + columns + " references " +
		former.Name(r.Source.Schema, k.Target) + " " + rules + ";"
}
