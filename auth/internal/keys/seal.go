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

// openRow decrypts the signing key of a row and checks that its id is the row's.
func openRow(root *secret.Root, row store.SigningKey) (*token.Key, error) {
	text, _, err := root.Open(secret.SigningKeys, row.Sealed, []byte(row.KID))
	if errors.Is(err, secret.ErrOtherRoot) {
		return nil, fmt.Errorf("keys: signing key %q was sealed under another root key: AUTH_SECRET_KEY (default "+
			"JWT_SECRET) is not the one it was made with, and AUTH_SECRET_KEYS_PREVIOUS does not hold that one", row.KID)
	}
	if err != nil {
		return nil, fmt.Errorf("keys: signing key %q: %w", row.KID, err)
	}
	jwk, err := token.ParseJWK(string(text))
	if err != nil {
		return nil, fmt.Errorf("keys: signing key %q: %w", row.KID, err)
	}
	if jwk.ID() != row.KID {
		return nil, fmt.Errorf("keys: signing key %q holds another key", row.KID)
	}
	return jwk.Key, nil
}

// generate makes a key that signs from signsAt on, and returns its row with the private key encrypted. It does not
// store the row.
func (k *Keeper) generate(alg token.Algorithm, signsAt time.Time) (row store.SigningKey, err error) {
	key, err := token.Generate(alg)
	if err != nil {
		return row, fmt.Errorf("keys: %w", err)
	}
	text, err := key.PrivateJWK()
	if err != nil {
		return row, fmt.Errorf("keys: %w", err)
	}
	return store.SigningKey{KID: key.ID(), Algorithm: alg.String(), CreatedAt: k.at(), SignsAt: signsAt,
		Sealed: k.Root.Seal(secret.SigningKeys, text, []byte(key.ID()))}, nil
}

// reseal encrypts again, under the current root key, the keys that were encrypted under a previous root key, so that
// the operator can remove the previous root key from the settings.
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
