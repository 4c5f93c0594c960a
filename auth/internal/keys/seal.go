package keys

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/token"
)

// sealKey returns the row of a key that signs from signsAt on.
func sealKey(root *secret.Root, key *token.Key, now, signsAt time.Time) (store.SigningKey, error) {
	text, err := key.PrivateJWK()
	if err != nil {
		return store.SigningKey{}, fmt.Errorf("keys: %w", err)
	}
	return store.SigningKey{
		KID: key.ID(), Algorithm: key.Algorithm().String(),
		Sealed:    root.Seal(secret.SigningKeys, text, []byte(key.ID())),
		CreatedAt: now, SignsAt: signsAt,
	}, nil
}

// openRow opens a row's key. old: a previous root key sealed it.
func openRow(root *secret.Root, row store.SigningKey) (key *token.Key, old bool, err error) {
	text, old, err := root.Open(secret.SigningKeys, row.Sealed, []byte(row.KID))
	switch {
	case errors.Is(err, secret.ErrOtherRoot):
		return nil, false,
			fmt.Errorf("keys: signing key %q was sealed under another root key: AUTH_SECRET_KEY (default JWT_SECRET) "+
				"is not the one it was made with, "+
				"and AUTH_SECRET_KEYS_PREVIOUS does not hold that one", row.KID)
	case err != nil:
		return nil, false, fmt.Errorf("keys: signing key %q: %w", row.KID, err)
	}
	jwk, err := token.ParseJWK(string(text))
	if err != nil {
		return nil, false, fmt.Errorf("keys: signing key %q: %w", row.KID, err)
	}
	if jwk.ID() != row.KID {
		return nil, false, fmt.Errorf("keys: signing key %q holds another key", row.KID)
	}
	return jwk.Key, old, nil
}

// generate makes a key that signs from signsAt on, sealed; it is not stored yet.
func (k *Keeper) generate(alg token.Algorithm, signsAt time.Time) (store.SigningKey, error) {
	key, err := token.Generate(alg)
	if err != nil {
		return store.SigningKey{}, fmt.Errorf("keys: %w", err)
	}
	return sealKey(k.Root, key, k.at(), signsAt)
}

// reseal seals keys again that a previous root key has sealed, so that the previous root key can be dropped.
func (k *Keeper) reseal(ctx context.Context) error {
	_, rows := k.snapshot()
	for _, row := range rows {
		if !row.RevokedAt.IsZero() {
			continue
		}
		text, old, err := k.Root.Open(secret.SigningKeys, row.Sealed, []byte(row.KID))
		if err != nil || !old {
			continue
		}
		if err := k.DB.ResealSigningKey(
			ctx, row.KID, k.Root.Seal(secret.SigningKeys, text, []byte(row.KID))); err != nil {
			return fmt.Errorf("keys: %w", err)
		}
		k.Log.Info("sealed a signing key under the current root key", "kid", row.KID)
	}
	return nil
}
