package formertest

import (
	"crypto/ecdsa"
	"crypto/elliptic"

	"gatehouse/auth/internal/webauthn/webauthntest"
)

// PublicKey returns a valid public key in the form in which authenticators send it. It is always the same.
func PublicKey() []byte {
	one := make([]byte, 32)
	one[31] = 1
	key, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), one)
	if err != nil {
		panic(err)
	}
	return webauthntest.COSE(&key.PublicKey)
}

// SecurityKey returns the value of a factor's column web_authn_credential.
func SecurityKey(id, publicKey []byte) []byte {
	return mustJSON(map[string]any{
		"id": id, "publicKey": publicKey, "attestationType": "none", "transport": []string{"usb", "NOT A TRANSPORT"},
		"flags":         map[string]bool{"userPresent": true, "backupEligible": true, "backupState": true},
		"authenticator": map[string]any{"AAGUID": make([]byte, 16), "signCount": 7, "cloneWarning": false},
	})
}
