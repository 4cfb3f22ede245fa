package serve

import (
	"os"

	"pulley/internal/pki"
)

// writeWhole writes a file that appears whole or not at all, and is durable when writeWhole returns.
func writeWhole(path string, b []byte, mode os.FileMode) error { return pki.WriteFile(path, b, mode) }
