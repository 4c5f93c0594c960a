package account

import (
	"context"
	"errors"

	"github.com/google/uuid"

	"gatehouse/auth/internal/store"
)

var errNoUser = missing(CodeUserNotFound, "User not found")

// userOf returns a user of any audience, even a soft-deleted one.
func (k *Core) userOf(ctx context.Context, id uuid.UUID) (store.User, error) {
	u, err := k.db.User(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return u, errNoUser
	}
	return u, failure("user", err)
}
