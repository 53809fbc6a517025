"""Training: the lab models, block fine-tuning, distillation of gates."""
