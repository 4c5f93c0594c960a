package store

import (
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

// Destinations of a Scan that take null as the zero value. They are plain pointers to the fields of
// our rows, so that reading a row costs no allocation for them.
type (
	at   time.Time
	id   uuid.UUID
	text string
	raw  []byte
	// number and small are integers of ours.
	number uint64
	small  int
)

// ScanTimestamptz implements pgtype.TimestamptzScanner.
func (a *at) ScanTimestamptz(v pgtype.Timestamptz) error {
	if *a = at(time.Time{}); v.Valid {
		*a = at(v.Time.UTC())
	}
	return nil
}

// ScanUUID implements pgtype.UUIDScanner.
func (i *id) ScanUUID(v pgtype.UUID) error {
	*i = id(v.Bytes) // zero for null
	return nil
}

// ScanText implements pgtype.TextScanner.
func (t *text) ScanText(v pgtype.Text) error {
	*t = text(v.String)
	return nil
}

// ScanInt64 implements pgtype.Int64Scanner.
func (n *number) ScanInt64(v pgtype.Int8) error {
	*n = number(v.Int64)
	return nil
}

// ScanInt64 implements pgtype.Int64Scanner.
func (n *small) ScanInt64(v pgtype.Int8) error {
	*n = small(v.Int64)
	return nil
}

// ScanBytes implements pgtype.BytesScanner; v is only lent.
func (r *raw) ScanBytes(v []byte) error {
	*r = append(raw(nil), v...)
	return nil
}

// null is a time as an argument: nil for the zero one.
func null(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t
}

// plain puts ids into pgx's own form. It would turn uuid.UUID into text and back, since that
// implements driver.Valuer.
func plain(args []any) []any {
	for i, a := range args {
		if u, ok := a.(uuid.UUID); ok {
			args[i] = pgtype.UUID{Bytes: u, Valid: true}
		}
	}
	return args
}

// nullID is an id as an argument: nil for the zero one.
func nullID(u uuid.UUID) any {
	if u == uuid.Nil {
		return nil
	}
	return pgtype.UUID{Bytes: u, Valid: true}
}

// nullBytes is bytes, or JSON text, as an argument: nil for none.
func nullBytes(b []byte) any {
	if len(b) == 0 {
		return nil
	}
	return b
}

// orInfinity is an optional time as an argument: nil stays null, the zero time becomes -infinity.
func orInfinity(t *time.Time) pgtype.Timestamptz {
	switch {
	case t == nil:
		return pgtype.Timestamptz{}
	case t.IsZero():
		return pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
	}
	return pgtype.Timestamptz{Time: *t, Valid: true}
}

type flag bool

// ScanBool implements pgtype.BoolScanner.
func (f *flag) ScanBool(v pgtype.Bool) error {
	*f = flag(v.Bool)
	return nil
}
