package former

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base32"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
)

// Encrypted is the value of a column that the former service has encrypted: a password hash, a TOTP key or the key of a
// session.
type Encrypted struct {
	// KeyID is the name of the key, one of those that the operator has configured in the former service.
	KeyID string

	data, nonce []byte
}

// Keys are the operator's keys by name. The methods of this type keep the keys from being printed.
type Keys map[string][]byte

// String returns how many keys there are, without the keys.
func (k Keys) String() string { return fmt.Sprintf("%d keys", len(k)) }

// GoString returns the same text as String, for the verb %#v.
func (k Keys) GoString() string { return k.String() }

// ParseKeys parses ID:KEY,ID:KEY, where KEY is 32 bytes in base64url without padding.
func ParseKeys(text string) (Keys, error) {
	keys := Keys{}
	if strings.TrimSpace(text) == "" {
		return keys, nil
	}
	for i, one := range strings.Split(text, ",") {
		id, encoded, found := strings.Cut(strings.TrimSpace(one), ":")
		if !found || id == "" {
			return nil, fmt.Errorf("key %d: want ID:KEY", i+1)
		}
		key, err := encoding.DecodeString(encoded)
		if err != nil || len(key) != 32 || strings.ContainsAny(encoded, "\r\n") {
			return nil, fmt.Errorf("key %d (%q): want 32 bytes in base64url without padding", i+1, id)
		}
		if _, twice := keys[id]; twice {
			return nil, fmt.Errorf("key %d: there are two keys named %q", i+1, id)
		}
		keys[id] = key
	}
	return keys, nil
}

// algorithm is the only algorithm with which columns are encrypted.
const algorithm = "aes-gcm-hkdf"

// ParseEncrypted parses the JSON of an encrypted column. The result is false for a text that is not encrypted, even if
// it begins like JSON.
func ParseEncrypted(text string) (Encrypted, bool) {
	if !strings.HasPrefix(text, "{") {
		return Encrypted{}, false
	}
	var v struct {
		KeyID     string `json:"key_id"`
		Algorithm string `json:"alg"`
		Data      string `json:"data"`
		Nonce     string `json:"nonce"`
	}
	if err := json.Unmarshal([]byte(text), &v); err != nil || v.Algorithm != algorithm || v.KeyID == "" {
		return Encrypted{}, false
	}
	data, err := base64.StdEncoding.DecodeString(v.Data)
	nonce, err2 := base64.StdEncoding.DecodeString(v.Nonce)
	if err != nil || err2 != nil || len(nonce) != 12 || len(data) < 16 {
		return Encrypted{}, false
	}
	return Encrypted{KeyID: v.KeyID, data: data, nonce: nonce}, true
}

// Errors that Open returns.
var (
	// ErrNoKey means that the column's key is not among Keys.
	ErrNoKey = errors.New("former: the key of an encrypted column is not known")
	// ErrOtherKey means that the key with this name has another value, or that the column belongs to another row.
	ErrOtherKey = errors.New("former: an encrypted column does not open with its key")
)

// Open decrypts the column. id is the id of its row: of the user for a password, of the factor for a TOTP key, of the
// session for a session's key. The error is ErrNoKey or ErrOtherKey.
func (e Encrypted) Open(keys Keys, id uuid.UUID) (string, error) {
	key, known := keys[e.KeyID]
	if !known {
		return "", ErrNoKey
	}
	plain, err := columnCipher(key, id).Open(nil, e.nonce, e.data, nil)
	if err != nil {
		return "", ErrOtherKey
	}
	return string(plain), nil
}

// columnCipher returns the cipher for one row: AES-256-GCM under a key that is derived from the operator's key and the
// row's id.
func columnCipher(key []byte, id uuid.UUID) cipher.AEAD {
	derived, err := hkdf.Key(sha256.New, key, nil, id.String(), 32)
	if err != nil {
		panic(err) // hkdf.Key fails only for more than 8160 bytes
	}
	block, err := aes.NewCipher(derived)
	if err != nil {
		panic(err) // the key has 32 bytes
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic(err) // AES has blocks of 16 bytes
	}
	return aead
}

// TOTPKey parses the decrypted key of a TOTP factor: base32 in upper or lower case, with or without padding. ok is
// false if the text is empty or malformed.
func TOTPKey(text string) (key []byte, ok bool) {
	if strings.ContainsAny(text, "\r\n") {
		return nil, false
	}
	key, err := base32.StdEncoding.WithPadding(base32.NoPadding).DecodeString(
		strings.ToUpper(strings.TrimRight(text, "=")))
	if err != nil || len(key) == 0 {
		return nil, false
	}
	return key, true
}
