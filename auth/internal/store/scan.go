package store

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// Destinations of a Scan that read null as the zero value. A pointer to a field of a row converts to a pointer to one
// of these types, so that scanning needs no allocation.
type (
	nullTime  time.Time
	nullUUID  uuid.UUID
	nullText  string
	nullBytes []byte
	nullFloat float64
	// nullUint and nullInt are the integers of our rows.
	nullUint uint64
	nullInt  int
)

// ScanTimestamptz implements pgtype.TimestamptzScanner.
func (a *nullTime) ScanTimestamptz(v pgtype.Timestamptz) error {
	if *a = nullTime(time.Time{}); v.Valid {
		*a = nullTime(v.Time.UTC())
	}
	return nil
}

// ScanUUID implements pgtype.UUIDScanner.
func (i *nullUUID) ScanUUID(v pgtype.UUID) error {
	*i = nullUUID(v.Bytes) // zero for null
	return nil
}

// ScanText implements pgtype.TextScanner.
func (t *nullText) ScanText(v pgtype.Text) error {
	*t = nullText(v.String)
	return nil
}

// ScanFloat64 implements pgtype.Float64Scanner.
func (a *nullFloat) ScanFloat64(v pgtype.Float8) error {
	*a = nullFloat(v.Float64) // zero for null
	return nil
}

// ScanInt64 implements pgtype.Int64Scanner.
func (n *nullUint) ScanInt64(v pgtype.Int8) error {
	*n = nullUint(v.Int64)
	return nil
}

// ScanInt64 implements pgtype.Int64Scanner.
func (n *nullInt) ScanInt64(v pgtype.Int8) error {
	*n = nullInt(v.Int64)
	return nil
}

// ScanBytes implements pgtype.BytesScanner; v is only lent.
func (r *nullBytes) ScanBytes(v []byte) error {
	*r = append(nullBytes(nil), v...)
	return nil
}

// timeOrNull returns a time as an argument: nil for the zero time.
func timeOrNull(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t
}

// encodeUUIDs converts ids to pgx's own type. pgx would convert a uuid.UUID to text and back, since it implements
// driver.Valuer.
func encodeUUIDs(args []any) []any {
	for i, a := range args {
		if u, ok := a.(uuid.UUID); ok {
			args[i] = pgtype.UUID{Bytes: u, Valid: true}
		}
	}
	return args
}

// uuidOrNull returns an id as an argument: nil for the zero id.
func uuidOrNull(u uuid.UUID) any {
	if u == uuid.Nil {
		return nil
	}
	return pgtype.UUID{Bytes: u, Valid: true}
}

// bytesOrNull returns bytes, or JSON text, as an argument: nil for none.
func bytesOrNull(b []byte) any {
	if len(b) == 0 {
		return nil
	}
	return b
}

// timeOrInfinity returns an optional time as an argument: nil becomes null, the zero time -infinity.
func timeOrInfinity(t *time.Time) pgtype.Timestamptz {
	switch {
	case t == nil:
		return pgtype.Timestamptz{}
	case t.IsZero():
		return pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
	}
	return pgtype.Timestamptz{Time: *t, Valid: true}
}

type nullBool bool

// ScanBool implements pgtype.BoolScanner.
func (f *nullBool) ScanBool(v pgtype.Bool) error {
	*f = nullBool(v.Bool)
	return nil
}

// scanRow is r.Scan for rows that are read often. pgx makes a plan for each column of each row, which is half of what
// GET /user allocates. scanRow reads values in the usual form itself and leaves the others to pgx.
func scanRow(r pgx.Rows, targets []any) error {
	fields, values := r.FieldDescriptions(), r.RawValues()
	if len(targets) != len(values) {
		return r.Scan(targets...) // returns an error with both numbers
	}
	types := r.Conn().TypeMap()
	for i, t := range targets {
		f := &fields[i]
		if scanUsual(t, f.DataTypeOID, f.Format, values[i]) {
			continue
		}
		if err := types.Scan(f.DataTypeOID, f.Format, values[i], t); err != nil {
			return pgx.ScanArgError{ColumnIndex: i, FieldName: f.Name, Err: err}
		}
	}
	return nil
}

// scanUsual reads a value that PostgreSQL sent in the form that pgx requests by default. For any other form, and for a
// malformed value, it returns false and reads nothing.
func scanUsual(to any, oid uint32, format int16, v []byte) bool {
	inBinary := format == pgtype.BinaryFormatCode
	switch to := to.(type) {
	case *nullTime:
		return oid == pgtype.TimestamptzOID && inBinary && to.scanBinary(v)
	case *nullUUID:
		if oid != pgtype.UUIDOID || !inBinary || v != nil && len(v) != len(to) {
			return false
		}
		*to = nullUUID{}
		copy(to[:], v)
	case *factorList:
		return isText(oid) && len(v) == 0 // most users have none
	case *nullText:
		if !isText(oid) {
			return false
		}
		*to = nullText(v)
	case *string:
		if !isText(oid) || v == nil {
			return false
		}
		*to = string(v)
	case *nullBytes:
		if !(oid == pgtype.ByteaOID && inBinary) && !(oid == pgtype.JSONBOID && !inBinary) {
			return false
		}
		*to = append(nullBytes(nil), v...)
	case *bool:
		if oid != pgtype.BoolOID || !inBinary || len(v) != 1 {
			return false
		}
		*to = v[0] == 1
	case *nullUint:
		n, ok := integer(oid, inBinary, v)
		*to = nullUint(n)
		return ok
	case *nullInt:
		n, ok := integer(oid, inBinary, v)
		*to = nullInt(n)
		return ok
	default:
		return false
	}
	return true
}

// integer reads an integer of two or eight bytes, the only sizes in our tables; null is 0.
func integer(oid uint32, inBinary bool, v []byte) (int64, bool) {
	switch {
	case !inBinary:
	case oid == pgtype.Int2OID && len(v) == 2:
		return int64(int16(binary.BigEndian.Uint16(v))), true
	case oid == pgtype.Int8OID && len(v) == 8:
		return int64(binary.BigEndian.Uint64(v)), true
	case oid == pgtype.Int2OID || oid == pgtype.Int8OID:
		return 0, v == nil
	}
	return 0, false
}

// isText reports whether a type has the same bytes in both formats.
func isText(oid uint32) bool { return oid == pgtype.TextOID || oid == pgtype.VarcharOID }

// scanBinary reads the binary form: microseconds since 2000. Infinite times are left to pgx.
func (a *nullTime) scanBinary(v []byte) bool {
	if v == nil {
		*a = nullTime{}
		return true
	}
	if len(v) != 8 {
		return false
	}
	micros := int64(binary.BigEndian.Uint64(v))
	if micros == math.MaxInt64 || micros == math.MinInt64 {
		return false
	}
	const year2000 = 946684800 // as Unix time
	*a = nullTime(time.Unix(year2000+micros/1e6, micros%1e6*1e3).UTC())
	return true
}
