package store

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"reflect"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// timeOrNull returns a time as an SQL argument: null for the zero time.
func timeOrNull(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t
}

// encodeUUIDs converts ids among the arguments to pgx's own type. Otherwise pgx would convert a uuid.UUID to text and
// back, since it implements driver.Valuer.
func encodeUUIDs(args []any) []any {
	for i, a := range args {
		if u, ok := a.(uuid.UUID); ok {
			args[i] = pgtype.UUID{Bytes: u, Valid: true}
		}
	}
	return args
}

// uuidOrNull returns an id as an SQL argument: null for uuid.Nil.
func uuidOrNull(u uuid.UUID) any {
	if u == uuid.Nil {
		return nil
	}
	return pgtype.UUID{Bytes: u, Valid: true}
}

// valuesOf replaces pointers by the values that they point to, as SQL arguments. Zero times, zero ids and empty bytes
// are replaced by null.
func valuesOf(targets []any) []any {
	for i, t := range targets {
		switch t := t.(type) {
		case *time.Time:
			targets[i] = timeOrNull(*t)
		case *uuid.UUID:
			targets[i] = uuidOrNull(*t)
		case *json.RawMessage:
			targets[i] = bytesOrNull(*t)
		case *[]byte:
			targets[i] = bytesOrNull(*t)
		case *[]string:
			targets[i] = stringArray(*t)
		case *string:
			targets[i] = *t
		case *bool:
			targets[i] = *t
		default:
			targets[i] = reflect.ValueOf(t).Elem().Interface()
		}
	}
	return targets
}

// bytesOrNull returns bytes or JSON as an SQL argument: null for empty bytes.
func bytesOrNull(b []byte) any {
	if len(b) == 0 {
		return nil
	}
	return b
}

// timeOrInfinity returns an optional time as an SQL argument: null for nil, and -infinity for a pointer to the zero
// time.
func timeOrInfinity(t *time.Time) pgtype.Timestamptz {
	switch {
	case t == nil:
		return pgtype.Timestamptz{}
	case t.IsZero():
		return pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
	}
	return pgtype.Timestamptz{Time: *t, Valid: true}
}

// scanRow reads a row into targets, which are pointers to fields. For a column that is null, the field gets its zero
// value. pgx's own Scan makes a plan for each column of each row, which is half of what GET /user allocates. So scanRow
// itself decodes values in the usual formats, and leaves only the others to pgx.
func scanRow(r pgx.Rows, targets []any) error {
	fields, values := r.FieldDescriptions(), r.RawValues()
	if len(targets) != len(values) {
		return r.Scan(targets...) // Scan returns an error with both numbers
	}
	types := r.Conn().TypeMap()
	for i, t := range targets {
		f, v := &fields[i], values[i]
		if scanUsual(t, f.DataTypeOID, f.Format, v) {
			continue
		}
		if v == nil {
			reflect.ValueOf(t).Elem().SetZero()
			continue
		}
		switch to := t.(type) {
		case *time.Time:
			t = (*utcTime)(to)
		case *uuid.UUID:
			t = (*[16]byte)(to)
		}
		if err := types.Scan(f.DataTypeOID, f.Format, v, t); err != nil {
			return pgx.ScanArgError{ColumnIndex: i, FieldName: f.Name, Err: err}
		}
	}
	return nil
}

// rowInto returns a function that reads a row into targets.
func rowInto(targets ...any) func(pgx.Rows) error {
	return func(r pgx.Rows) error { return scanRow(r, targets) }
}

// utcTime scans a time and converts it to UTC. Infinity is scanned as the zero time.
type utcTime time.Time

// ScanTimestamptz implements pgtype.TimestamptzScanner.
func (a *utcTime) ScanTimestamptz(v pgtype.Timestamptz) error {
	*a = utcTime(v.Time.UTC())
	return nil
}

// scanUsual decodes a value that has the type and the format in which PostgreSQL sends it to pgx by default. If the
// value has another type or format, or is malformed, it returns false, and the caller lets pgx scan the value.
func scanUsual(to any, oid uint32, format int16, v []byte) bool {
	inBinary := format == pgtype.BinaryFormatCode
	switch to := to.(type) {
	case *time.Time:
		return oid == pgtype.TimestamptzOID && inBinary && scanTime(to, v)
	case *uuid.UUID:
		if oid != pgtype.UUIDOID || !inBinary || v != nil && len(v) != len(to) {
			return false
		}
		*to = uuid.Nil
		copy(to[:], v)
	case *factorList:
		return isText(oid) && len(v) == 0 // most users have none
	case *string:
		if !isText(oid) {
			return false
		}
		*to = string(v)
	case *json.RawMessage:
		return scanUsual((*[]byte)(to), oid, format, v)
	case *[]byte:
		if !(oid == pgtype.ByteaOID && inBinary) && !(oid == pgtype.JSONBOID && !inBinary) {
			return false
		}
		*to = append([]byte(nil), v...)
	case *bool:
		if oid != pgtype.BoolOID || !inBinary || len(v) != 1 {
			return false
		}
		*to = v[0] == 1
	case *uint64:
		n, ok := integer(oid, inBinary, v)
		*to = uint64(n)
		return ok && n >= 0
	case *int:
		n, ok := integer(oid, inBinary, v)
		*to = int(n)
		return ok
	default:
		return false
	}
	return true
}

// integer decodes an integer of two or eight bytes, the only sizes in our tables. The result for null is 0.
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

// isText reports whether values of a type have the same bytes in the text format and in the binary format.
func isText(oid uint32) bool { return oid == pgtype.TextOID || oid == pgtype.VarcharOID }

// scanTime decodes a time in the binary format: microseconds since the year 2000. It returns false for infinity, which
// is left to pgx.
func scanTime(to *time.Time, v []byte) bool {
	if v == nil {
		*to = time.Time{}
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
	*to = time.Unix(year2000+micros/1e6, micros%1e6*1e3).UTC()
	return true
}
