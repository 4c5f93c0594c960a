package provider

import "net/http"

// twitchProof: its API wants to know the application besides the access token.
func twitchProof(s *signIn, _ map[string]string, header http.Header) {
	header.Set("Client-Id", s.clientID())
}
