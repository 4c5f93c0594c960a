package httpapi

import "testing"

func conforms(t *testing.T, method, path string, a answer) {}
