package store

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Limit is a token bucket in the database, which all replicas share.
type Limit struct {
	// Key identifies the bucket. It is a MAC or a hash, never an address in clear.
	Key []byte
	// Size is how many tokens a full bucket holds; 0 refuses everything.
	Size float64
	// Refill is the time in which an empty bucket becomes full.
	Refill time.Duration
}

// NewInterval returns a limit of one token, which is refilled after pause. So an act that takes the token is possible
// once per pause.
func NewInterval(key []byte, pause time.Duration) Limit {
	return Limit{Key: key, Size: 1, Refill: pause}
}

// Level is how many tokens a bucket held at a time. The zero Level stands for a bucket that was never used, which is
// full.
type Level struct {
	Tokens float64
	At     time.Time
}

// Left returns how many tokens the bucket holds now.
func (l Limit) Left(v Level, now time.Time) float64 {
	if v.At.IsZero() || l.Refill <= 0 {
		return l.Size
	}
	return min(l.Size, v.Tokens+max(0, now.Sub(v.At).Seconds())*l.rate())
}

// Wait returns the time until n tokens can be taken; 0 if they can be taken now. If the bucket can never hold n tokens,
// it returns the longest time.Duration.
func (l Limit) Wait(v Level, now time.Time, n float64) time.Duration {
	lacking := n - l.Left(v, now)
	if lacking <= 0 {
		return 0
	}
	if n > l.Size {
		return math.MaxInt64
	}
	// Round up to whole microseconds. The division may be off by a rounding error, so 0.001 µs is subtracted before:
	// such an error must not add a microsecond.
	return time.Duration(math.Ceil(lacking/l.rate()*1e6-1e-3)) * time.Microsecond
}

// rate returns how many tokens are added in a second.
func (l Limit) rate() float64 {
	if l.Refill <= 0 {
		return math.MaxFloat32
	}
	return l.Size / l.Refill.Seconds()
}

// LimitError is the error for a bucket that held too few tokens.
type LimitError struct{ Limit Limit }

func (e *LimitError) Error() string { return fmt.Sprintf("limit %x is used up", e.Limit.Key) }

var selectLevels = define(`
select n.i, l.tokens, l.at
from unnest($1::bytea[]) with ordinality n (key, i) join {limits} l on l.key = n.key`)

var selectLevelsAt = define(`
select n.i, l.tokens, l.at
from unnest($1::bytea[]) with ordinality n (key, i) join {limits} l on l.key = n.key
union all
select 0, 0, null where ` + ownerKnows("$2", "$3", "$4", "$5"))

// Levels reads the levels of buckets into dst, one Level for each limit.
func (b *Batch) Levels(dst *[]Level, limits ...Limit) {
	b.rows("levels", dst, levelsInto(dst, new(bool), len(limits)), selectLevels, keysOf(limits))
}

// UserAt identifies a user by audience and address. Place is the network from which the request came.
type UserAt struct {
	Aud, Address string
	Place        Place
}

// LevelsAt does the same as Levels, and also sets known to whether u.Place is a known place of the user.
func (b *Batch) LevelsAt(dst *[]Level, known *bool, u UserAt, limits ...Limit) {
	b.rows("levels", dst, levelsInto(dst, known, len(limits)), selectLevelsAt, keysOf(limits), u.Aud, u.Address,
		u.Place.MAC, u.Place.Since)
}

func keysOf(limits []Limit) [][]byte {
	keys := make([][]byte, len(limits))
	for i, l := range limits {
		keys[i] = l.Key
	}
	return keys
}

// levelsInto returns a function that reads the rows of selectLevels or selectLevelsAt. Column 1 is the number of the
// limit, from 1. A row with number 0 means that the place is known.
func levelsInto(dst *[]Level, known *bool, n int) func(pgx.Rows) error {
	*dst, *known = make([]Level, n), false
	return func(r pgx.Rows) error {
		var i int
		var v Level
		if err := scanRow(r, []any{&i, &v.Tokens, &v.At}); err != nil {
			return err
		}
		if i == 0 {
			*known = true
			return nil
		}
		(*dst)[i-1] = v
		return nil
	}
}

// bucket has the SQL parameters, such as $2, that describe a bucket in a statement: its size, the tokens added per
// second, the seconds in which it becomes full, and the present time.
type bucket struct{ size, rate, refill, now string }

// holds returns the SQL expression for how many tokens the bucket in row l of our table limits holds now.
func (b bucket) holds() string {
	return "least(" + b.size + "::float8, l.tokens + greatest(0, extract(epoch from " + b.now +
		"::timestamptz - l.at)::float8) * " + b.rate + "::float8)"
}

// holdsTry returns the SQL condition that the bucket holds at least one token. The 1e-9 that may be missing allows for
// rounding errors.
func (b bucket) holdsTry() string { return b.holds() + " >= 1 - 1e-9" }

// fullAt returns the SQL expression for when the bucket will be full if it becomes empty now.
func (b bucket) fullAt() string {
	return b.now + "::timestamptz + " + b.refill + "::float8 * interval '1 second'"
}

// takeFrom returns a common table expression named taken. from is a FROM clause. For each of its rows, taken takes a
// token from the bucket with the given key, and returns a row if the bucket had a token. An empty bucket is not
// changed, so it refills as if nothing had been tried.
func takeFrom(key, from string, b bucket) string {
	return `taken as (
    insert into {limits} as l (key, tokens, at, full_at)
    select ` + key + `, ` + b.size + `::float8 - 1, ` + b.now + `::timestamptz, ` + b.fullAt() + ` ` + from + `
    on conflict (key) do update set tokens = greatest(0, ` + b.holds() + ` - 1),
        at = greatest(l.at, ` + b.now + `::timestamptz), full_at = greatest(l.full_at, ` + b.fullAt() + `)
    where ` + b.holdsTry() + `
    returning 1
)`
}

// markPause returns a common table expression named marked. from is a FROM clause. For each of its rows, marked takes
// the token of an interval, and returns a row if the token had not been taken.
func markPause(key, refill, now, from string) string {
	return `marked as (
    insert into {limits} as l (key, tokens, at, full_at)
    select ` + key + `::bytea, 0, ` + now + `::timestamptz, ` +
		bucket{refill: refill, now: now}.fullAt() + ` ` + from + `
    on conflict (key) do update set at = ` + now + `, full_at = excluded.full_at
    where l.full_at <= ` + now + `
    returning 1
)`
}

// takeLimit computes the new level from the row as it is when the statement holds the row's lock. A level below zero
// violates the constraint limits_floor.
var takeLimit = define(`
insert into {limits} as l (key, tokens, at, full_at)
values ($1, $2::float8 - $4::float8, $5::timestamptz, ` + bucket{refill: "$6", now: "$5"}.fullAt() + `)
on conflict (key) do update set
    tokens = ` + bucket{size: "$2", rate: "$3", now: "$5"}.holds() + ` - $4::float8,
    at = greatest(l.at, $5::timestamptz),
    full_at = greatest(l.full_at, excluded.full_at)`)

// Take takes n tokens from a bucket. If the bucket holds fewer, Send fails with a LimitError and the whole Batch is
// undone. With n = 0 the same statement is executed, and it always succeeds.
func (b *Batch) Take(l Limit, n float64, now time.Time) {
	b.add("take", func(r pgx.BatchResults) error {
		_, err := r.Exec()
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "23514" { // check_violation
			return &LimitError{l}
		}
		return err
	}, takeLimit, l.Key, l.Size, l.rate(), n, now, l.Refill.Seconds())
}

var deleteLimits = define(`
delete from {limits} where key = any($1::bytea[])`)

// ForgetLimits deletes the levels of buckets, so that the buckets are full.
func (b *Batch) ForgetLimits(keys ...[]byte) { b.exec("forget limits", deleteLimits, keys) }

// Place is the network from which a user tries to sign in.
type Place struct {
	// MAC identifies the network without revealing it; nil if the network is unknown.
	MAC []byte
	// Since is the time after which the user must have signed in from the place for it to be a known place.
	Since time.Time
	// Tries is the bucket from which tries at a known place take their tokens. Tries elsewhere use the account's
	// bucket.
	Tries Limit
}

// maxPlaces is how many places are stored for a user.
const maxPlaces = "20"

// placeOf returns the SQL expression for a place as it is stored; user and mac are SQL expressions. It hashes the MAC
// together with the user's id, so that the table does not show which users share a network.
func placeOf(user, mac string) string {
	return "sha256(uuid_send(" + user + "::uuid) || " + mac + "::bytea)"
}

// rememberPlace returns two common table expressions for a statement that opens a session. They store the place from
// which the user signs in, and delete the place that was not used for the longest time if there are too many. users is
// the name of a table with one row, or none. If the place was stored less than a day ago, nothing is written.
func rememberPlace(users, user, mac, now string) string {
	return `
placed as (
    insert into {known_places} as k (user_id, place, seen_at)
    select p.id, ` + placeOf("p.id",
		mac) + `, ` + now + `::timestamptz from ` + users + ` p where ` + mac + `::bytea is not null
    on conflict (user_id, place) do update set seen_at = excluded.seen_at where k.seen_at < excluded.seen_at - interval '1 day'
), forgotten as (
    delete from {known_places} k using ` + users + ` p
    where k.user_id = p.id and ` + mac + `::bytea is not null and k.place in (
        select o.place from {known_places} o where o.user_id = ` + user + `::uuid and o.place <> ` + placeOf(user,
		mac) + `
        order by o.seen_at desc, o.place offset ` + maxPlaces + ` - 1)
)`
}

// knowsPlace returns the SQL condition that a place is a known place of a user.
func knowsPlace(user, mac, since string) string {
	return `exists (select from {known_places} k
    where k.user_id = ` + user + ` and k.place = ` + placeOf(user, mac) + ` and k.seen_at > ` + since + `::timestamptz)`
}

var deletePlaces = define(`
delete from {known_places} where user_id = $1`)

// DeletePlaces deletes the known places of a user.
func (b *Batch) DeletePlaces(user uuid.UUID) { b.exec("delete places", deletePlaces, user) }
