package account

import (
	"context"
	"errors"
	"time"

	"gatehouse/auth/internal/password"
)

// hashing is the workers as flows see them: whoever's time is up before a worker had done his share is told
// what somebody hears whom the queue had no place for. It isn't his request that takes so long.
type hashing struct{ workers *password.Workers }

func (h hashing) Hash(ctx context.Context, text string) (string, error) {
	hash, err := h.workers.Hash(ctx, text)
	return hash, busy(err)
}

func (h hashing) Check(ctx context.Context, hash, text string) (ok, rehash bool, err error) {
	ok, rehash, err = h.workers.Check(ctx, hash, text)
	return ok, rehash, busy(err)
}

func busy(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return &password.Busy{RetryAfter: 2 * time.Second}
	}
	return err
}
