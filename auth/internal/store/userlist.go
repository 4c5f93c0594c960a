package store

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// UsersFilter selects a page of the users with one audience, including soft-deleted users.
type UsersFilter struct {
	Aud string
	// Text is a part of the email address, of the phone number or of user_metadata.full_name, in upper or lower case,
	// or it is the whole id; "" for any. A search for Text reads all users with the audience.
	Text string
	// Email, Phone and ID must match exactly, and are quick to search; zero for any.
	Email, Phone string
	ID           uuid.UUID
	// OldestFirst sorts by created_at and id in ascending order.
	OldestFirst bool
	// Offset is how many users are skipped. After continues after a given user instead, which costs the same for every
	// page.
	Offset, Limit int
	After         Cursor
	// Count requests the total number of users that the filter finds, for which all of them are read.
	Count bool
}

// Cursor is the position of the last row of a page; zero stands for the position before the first row.
type Cursor struct {
	CreatedAt time.Time
	ID        uuid.UUID
}

const usersWhere = `
where u.aud = $1
  and ($2 = '' or u.email ilike $2 or u.phone ilike $2 or u.user_metadata->>'full_name' ilike $2 or u.id::text = $3)
  and ($4 = '' or u.email = $4 and u.email <> '')
  and ($5 = '' or u.phone = $5 and u.phone <> '')
  and ($6::uuid is null or u.id = $6)`

var selectUsersNewest, selectUsersOldest = define(selectUsers("<", "desc")), define(selectUsers(">", "asc"))

// selectUsers returns the statement for a page of users after the cursor. order is asc or desc. behind is the operator,
// > or <, that compares a user with the cursor in this order.
func selectUsers(behind, order string) string {
	return `
select ` + userColumns + `
from {users} u` + usersWhere + `
  and ($7::timestamptz is null or (u.created_at, u.id) ` + behind + ` ($7, $8::uuid))
order by u.created_at ` + order + `, u.id ` + order + `
offset $9 limit $10`
}

var countUsers = define(`
select count(*) from {users} u` + usersWhere)

// Users returns a page of users without identities, and their total number if the filter requests it.
func (db *DB) Users(ctx context.Context, f UsersFilter) (page []User, total int, err error) {
	where := []any{f.Aud, contains(f.Text), f.Text, f.Email, f.Phone, uuidOrNull(f.ID)}
	order := selectUsersNewest
	if f.OldestFirst {
		order = selectUsersOldest
	}
	b := db.Batch()
	b.rows("users", &page, appendTo(&page, userTargets), order,
		append(where, timeOrNull(f.After.CreatedAt), uuidOrNull(f.After.ID), f.Offset, f.Limit)...)
	if f.Count {
		b.row("count users", &total, []any{&total}, countUsers, where...)
	}
	err = b.Send(ctx)
	return page, total, err
}
